// Opens CUDA devices, and describes the CUDA support of this build and host: implements the
// functions at the end of kernels/api/device.h.
#include <cuda.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/api/device.h"
#include "kernels/api/device_ops.h"
#include "kernels/cuda/backend/op_table.h"
#include "kernels/cuda/gpu/cuda_event.h"
#include "kernels/cuda/gpu/cuda_stream.h"

namespace tandem::kernels {
namespace cuda {
namespace {

constexpr DeviceOps kOps = PortableOps("cuda-mma16816-v3");
[[maybe_unused]] constexpr DeviceOps kHopperOps = HopperOps("cuda-wgmma16-v4");

// Code for sm_90a runs on compute capability 9.0 only.
const DeviceOps& OpsFor([[maybe_unused]] const cudaDeviceProp& properties,
                        [[maybe_unused]] DeviceKernels choice) {
#if defined(TANDEM_HOPPER_COMPILED)
  if (choice == DeviceKernels::kOwn && properties.major == 9 && properties.minor == 0) {
    return kHopperOps;
  }
#endif
  return kOps;
}

class CudaDevice final : public Device {
 public:
  CudaDevice(int ordinal, DeviceProperties properties, const DeviceOps& ops)
      : ordinal_(ordinal), properties_(std::move(properties)), ops_(ops) {}

  const DeviceProperties& properties() const override { return properties_; }
  const DeviceOps& ops() const override { return ops_; }

  absl::StatusOr<int64_t> FreeBytes() override {
    size_t free_bytes = 0, total = 0;
    absl::Status status = ToStatus("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total));
    if (!status.ok()) return status;
    return static_cast<int64_t>(free_bytes);
  }

  absl::StatusOr<DeviceBuffer> Allocate(DeviceBuffer::Kind kind, size_t bytes) override {
    if (bytes == 0) return DeviceBuffer();
    // The calling thread may not be the one that opened the device.
    absl::Status status = ToStatus("cudaSetDevice", cudaSetDevice(ordinal_));
    if (!status.ok()) return status;
    void* data = nullptr;
    if (kind == DeviceBuffer::Kind::kDevice) {
      status = ToStatus(absl::StrCat("cudaMalloc of ", bytes, " bytes").c_str(),
                        cudaMalloc(&data, bytes));
    } else {
      status = ToStatus(absl::StrCat("cudaHostAlloc of ", bytes, " bytes").c_str(),
                        cudaHostAlloc(&data, bytes, cudaHostAllocDefault));
    }
    cudaGetLastError();  // clears the error, which the caller gets as a Status
    if (!status.ok()) return status;
    return DeviceBuffer(this, kind, data, bytes);
  }

  absl::Status Pin(void* host, size_t bytes) override {
    absl::Status status = ToStatus("cudaSetDevice", cudaSetDevice(ordinal_));
    if (!status.ok()) return status;
    status = ToStatus("cudaHostRegister", cudaHostRegister(host, bytes, cudaHostRegisterPortable));
    cudaGetLastError();  // clears the error, which the caller gets as a Status
    if (status.ok()) return status;
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot pin ", bytes, " bytes: ", status.message()));
  }
  void Unpin(void* host) override { cudaHostUnregister(host); }

  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream(StreamPriority priority) override {
    absl::Status status = ToStatus("cudaSetDevice", cudaSetDevice(ordinal_));
    if (!status.ok()) return status;
    // Lower numbers are more urgent.
    int normal = 0, urgent = 0;
    status = ToStatus("cudaDeviceGetStreamPriorityRange",
                      cudaDeviceGetStreamPriorityRange(&normal, &urgent));
    if (!status.ok()) return status;
    cudaStream_t handle = nullptr;
    status = ToStatus(
        "cudaStreamCreateWithPriority",
        cudaStreamCreateWithPriority(&handle, cudaStreamNonBlocking,
                                     priority == StreamPriority::kUrgent ? urgent : normal));
    if (!status.ok()) return status;
    return std::unique_ptr<DeviceStream>(std::make_unique<CudaStream>(handle));
  }

  // A failure shows in the next CUDA call.
  void UseOnThisThread() override { cudaSetDevice(ordinal_); }

  absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() override {
    cudaEvent_t handle = nullptr;
    absl::Status status = ToStatus("cudaEventCreate", cudaEventCreate(&handle));
    if (!status.ok()) return status;
    return std::unique_ptr<DeviceEvent>(std::make_unique<CudaEvent>(handle));
  }

 private:
  void Free(DeviceBuffer::Kind kind, void* data) override {
    if (kind == DeviceBuffer::Kind::kDevice) {
      cudaFree(data);
    } else {
      cudaFreeHost(data);
    }
  }

  const int ordinal_;
  const DeviceProperties properties_;
  const DeviceOps& ops_;
};

// Settings that CUDA reads from the environment when a process first uses it. What a user has set
// stays. Kernels load when the device is opened, because one that loads at its first use may have
// to wait for the device, which a stream under capture must not. Streams of engine, copies and KV
// transfers get hardware queues of their own, because in a shared one they wait for each other.
void SetProcessDefaults() {
  static const bool once = [] {
    setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", /*overwrite=*/0);
    return true;
  }();
  static_cast<void>(once);
}

absl::StatusOr<int> CountDevices() {
  SetProcessDefaults();
  int count = 0;
  absl::Status status = ToStatus("cudaGetDeviceCount", cudaGetDeviceCount(&count));
  cudaGetLastError();  // clears the error, which the caller gets as a Status
  if (!status.ok()) return status;
  return count;
}

// The driver's own version, through the runtime's table of driver symbols, so that no program links
// libcuda.
std::string DriverVersion() {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuDriverGetVersion", &entry, 12000,
                                                             cudaEnableDefault, &found);
  int version = 0;
  if (error != cudaSuccess || found != cudaDriverEntryPointSuccess || entry == nullptr ||
      reinterpret_cast<decltype(&cuDriverGetVersion)>(entry)(&version) != CUDA_SUCCESS) {
    return "unknown";
  }
  return absl::StrCat(version / 1000, ".", version % 1000 / 10);
}

// The CUDA version that the kernels were compiled with.
std::string RuntimeVersion() {
  return absl::StrCat("CUDA ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
}

// Compiled for the architectures that all kernels are compiled for.
__global__ void ProbeKernel() {}

// kUnavailable if this program has no kernels for the current device.
absl::Status CheckHasKernels(const cudaDeviceProp& device) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, ProbeKernel);
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();  // clears the error, which the caller gets as a Status
  return absl::UnavailableError(absl::StrCat(
      "this program has no kernels for ", device.name, ", sm_", device.major, device.minor, " (",
      cudaGetErrorString(error), "): it was built with other TANDEM_CUDA_ARCHITECTURES"));
}

}  // namespace

}  // namespace cuda

std::string DescribeCuda() {
  const std::string built = absl::StrCat("built with ", cuda::RuntimeVersion());
  const absl::StatusOr<int> count = cuda::CountDevices();
  if (!count.ok()) return absl::StrCat(built, "; no device: ", count.status().message());
  if (*count == 0) return absl::StrCat(built, "; no device");
  std::string text = absl::StrCat(built, "; driver for CUDA ", cuda::DriverVersion(), "; devices:");
  for (int i = 0; i < *count; ++i) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, i) != cudaSuccess) continue;
    absl::StrAppend(&text, i == 0 ? " " : ", ", properties.name, " (sm_", properties.major,
                    properties.minor, ", ", properties.totalGlobalMem >> 30, " GiB)");
  }
  return text;
}

int CountCudaDevices() { return cuda::CountDevices().value_or(0); }

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal, DeviceKernels choice) {
  const absl::StatusOr<int> count = cuda::CountDevices();
  if (!count.ok()) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA device can be used on this host: ", count.status().message()));
  }
  if (*count == 0) return absl::UnavailableError("this host has no CUDA device");
  if (ordinal < 0 || ordinal >= *count) {
    return absl::InvalidArgumentError(
        absl::StrCat("CUDA device ", ordinal, ", expected 0 to ", *count - 1));
  }
  cudaDeviceProp found;
  absl::Status status =
      cuda::ToStatus("cudaGetDeviceProperties", cudaGetDeviceProperties(&found, ordinal));
  if (status.ok()) status = cuda::ToStatus("cudaSetDevice", cudaSetDevice(ordinal));
  if (!status.ok()) return status;
  if (found.major < 8) {
    return absl::UnavailableError(absl::StrCat(found.name, " has compute capability ", found.major,
                                               ".", found.minor, ", expected 8.0 or later"));
  }
  if (absl::Status kernels = cuda::CheckHasKernels(found); !kernels.ok()) return kernels;
  DeviceProperties properties;
  properties.name = found.name;
  properties.software =
      absl::StrCat(cuda::RuntimeVersion(), ", driver for CUDA ", cuda::DriverVersion());
  properties.compute_major = found.major;
  properties.compute_minor = found.minor;
  properties.multiprocessors = found.multiProcessorCount;
  properties.memory_bytes = static_cast<int64_t>(found.totalGlobalMem);
  properties.l2_bytes = found.l2CacheSize;
  properties.shared_bytes_per_block_max = static_cast<int64_t>(found.sharedMemPerBlockOptin);
  properties.shared_bytes_per_multiprocessor =
      static_cast<int64_t>(found.sharedMemPerMultiprocessor);
  return std::unique_ptr<Device>(std::make_unique<cuda::CudaDevice>(ordinal, std::move(properties),
                                                                    cuda::OpsFor(found, choice)));
}

}  // namespace tandem::kernels
