#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/gpu/cuda_event.h"
#include "kernels/cuda/gpu/cuda_stream.h"

namespace tandem::kernels::cuda {
namespace {

class CudaGraph final : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t handle) : handle_(handle) {}
  ~CudaGraph() override { cudaGraphExecDestroy(handle_); }
  cudaGraphExec_t handle() const { return handle_; }

 private:
  const cudaGraphExec_t handle_;
};

}  // namespace

absl::Status ToStatus(const char* call, cudaError_t error) {
  if (error == cudaSuccess) return absl::OkStatus();
  const std::string message =
      absl::StrCat(call, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")");
  switch (error) {
    case cudaErrorMemoryAllocation:
      return absl::ResourceExhaustedError(message);
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
      return absl::UnavailableError(message);
    case cudaErrorInvalidValue:
    case cudaErrorInvalidDevice:
      return absl::InvalidArgumentError(message);
    default:
      return absl::InternalError(message);
  }
}

CudaStream::~CudaStream() { cudaStreamDestroy(handle_); }

void CudaStream::Check(const char* call, cudaError_t error) {
  if (error != cudaSuccess && status_.ok()) status_ = ToStatus(call, error);
}

void CudaStream::CopyIn(void* device, const void* host, size_t bytes) {
  Check("cudaMemcpyAsync (host to device)",
        cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, handle_));
}
void CudaStream::CopyOut(void* host, const void* device, size_t bytes) {
  Check("cudaMemcpyAsync (device to host)",
        cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, handle_));
}
void CudaStream::CopyWithin(void* to, const void* from, size_t bytes) {
  Check("cudaMemcpyAsync (device to device)",
        cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, handle_));
}
void CudaStream::Fill(void* device, int byte, size_t bytes) {
  Check("cudaMemsetAsync", cudaMemsetAsync(device, byte, bytes, handle_));
}
void CudaStream::Record(DeviceEvent& event) {
  Check("cudaEventRecord", cudaEventRecord(static_cast<CudaEvent&>(event).handle(), handle_));
}
void CudaStream::Wait(DeviceEvent& event) {
  Check("cudaStreamWaitEvent",
        cudaStreamWaitEvent(handle_, static_cast<CudaEvent&>(event).handle(), 0));
}

absl::StatusOr<std::unique_ptr<DeviceGraph>> CudaStream::Capture(
    absl::FunctionRef<void()> enqueue) {
  if (!status_.ok()) return status_;
  absl::Status status = ToStatus("cudaStreamBeginCapture",
                                 cudaStreamBeginCapture(handle_, cudaStreamCaptureModeThreadLocal));
  if (!status.ok()) return status;
  enqueue();
  cudaGraph_t graph = nullptr;
  status = ToStatus("cudaStreamEndCapture", cudaStreamEndCapture(handle_, &graph));
  // What failed inside says more than the end of the capture, and fails only this capture.
  const absl::Status inside = std::exchange(status_, absl::OkStatus());
  if (!inside.ok()) status = inside;
  cudaGraphExec_t exec = nullptr;
  if (status.ok()) {
    status = ToStatus("cudaGraphInstantiate", cudaGraphInstantiate(&exec, graph, 0));
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
  if (!status.ok()) {
    cudaGetLastError();  // clears the error, which the caller gets as a Status
    return status;
  }
  return std::unique_ptr<DeviceGraph>(std::make_unique<CudaGraph>(exec));
}

void CudaStream::Launch(DeviceGraph& graph) {
  Check("cudaGraphLaunch", cudaGraphLaunch(static_cast<CudaGraph&>(graph).handle(), handle_));
}

absl::Status CudaStream::Synchronize() {
  Check("cudaStreamSynchronize", cudaStreamSynchronize(handle_));
  return status_;
}

}  // namespace tandem::kernels::cuda
