// An accelerator as the engine sees it: memory, streams, events, graphs. This seam has two
// implementations: CUDA, and the emulated device of the tests, which runs the same kernels on the
// host.
//
// Errors name the call that failed, what it was asked to do and the device's reason. A stream
// remembers the first failure of anything enqueued on it; Synchronize and status() report it.
// Thread safety: a Device from any thread; a Stream, its graphs and events by one thread at a time.
// Owner: the engine; streams, buffers, events and graphs must be destroyed before their device.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tandem::kernels {

struct DeviceOps;
class Device;

struct DeviceProperties {
  std::string name;      // "NVIDIA H200"
  std::string software;  // compiler, runtime and driver: "CUDA 13.0, driver for CUDA 13.0"
  int compute_major = 0, compute_minor = 0;
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes_per_block_max = 0;
  int64_t shared_bytes_per_multiprocessor = 0;
  // Whether the host can read and write this memory as its own (the emulated device).
  bool host_addressable = false;
};

// Device memory, or host memory that the device can copy from and to while the host computes.
class DeviceBuffer {
 public:
  enum class Kind { kDevice, kPinnedHost };

  DeviceBuffer() = default;
  DeviceBuffer(Device* device, Kind kind, void* data, size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(device_, other.device_);
    std::swap(kind_, other.kind_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~DeviceBuffer();

  char* data() const { return static_cast<char*>(data_); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  size_t bytes() const { return bytes_; }

 private:
  Device* device_ = nullptr;
  Kind kind_ = Kind::kDevice;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Work captured from a stream, which Launch runs again with one call.
class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
};

// A point in a stream's work.
class DeviceEvent {
 public:
  virtual ~DeviceEvent() = default;
  // Blocks the host until the point is reached.
  virtual absl::Status Synchronize() = 0;
  // Milliseconds from `start` to this event. REQUIRES: both were reached.
  virtual absl::StatusOr<float> MillisecondsSince(DeviceEvent& start) = 0;
};

// A queue of work that runs in order. Calls that enqueue report failures through status() only.
class DeviceStream {
 public:
  virtual ~DeviceStream() = default;

  // The caller keeps both sides' memory unchanged until the copy is done. A copy from or to host
  // memory that is not pinned blocks the caller until it is done.
  virtual void CopyIn(void* device, const void* host, size_t bytes) = 0;
  virtual void CopyOut(void* host, const void* device, size_t bytes) = 0;
  virtual void CopyWithin(void* to, const void* from, size_t bytes) = 0;
  virtual void Fill(void* device, int byte, size_t bytes) = 0;

  virtual void Record(DeviceEvent& event) = 0;
  virtual void Wait(DeviceEvent& event) = 0;

  // Records the work that `enqueue` enqueues on this stream instead of running it. A failure leaves
  // the stream as it was. Errors: kResourceExhausted, and those of the calls that `enqueue` makes.
  // REQUIRES: `enqueue` neither allocates nor synchronises.
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
      absl::FunctionRef<void()> enqueue) = 0;
  virtual void Launch(DeviceGraph& graph) = 0;

  virtual absl::Status Synchronize() = 0;
  // The first failure of a call on this stream, kept for the stream's life.
  virtual const absl::Status& status() const = 0;
};

// Which streams' blocks a busy device runs first. The engine's steps are urgent; copies and KV
// transfers wait behind them, and fill what they leave free.
enum class StreamPriority { kNormal, kUrgent };

class Device {
 public:
  virtual ~Device() = default;

  virtual const DeviceProperties& properties() const = 0;
  // This device's operators. REQUIRES: callers pass them streams of this device only.
  virtual const DeviceOps& ops() const = 0;
  virtual absl::StatusOr<int64_t> FreeBytes() = 0;
  // Device memory of buffers that exist now. Other processes' does not count. Any thread.
  int64_t allocated_bytes() const { return allocated_bytes_.load(std::memory_order_relaxed); }
  // Contents are undefined. Errors: kResourceExhausted when the device refuses the memory.
  virtual absl::StatusOr<DeviceBuffer> Allocate(DeviceBuffer::Kind kind, size_t bytes) = 0;
  // Pins mapped host memory, so that copies treat it like kPinnedHost, until Unpin of the same
  // address. REQUIRES: `host` is a page's boundary. Errors: kResourceExhausted when the system
  // refuses.
  virtual absl::Status Pin(void* host, size_t bytes) = 0;
  virtual void Unpin(void* host) = 0;
  virtual absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream(StreamPriority priority) = 0;
  absl::StatusOr<std::unique_ptr<DeviceStream>> NewStream() {
    return NewStream(StreamPriority::kNormal);
  }
  virtual absl::StatusOr<std::unique_ptr<DeviceEvent>> NewEvent() = 0;
  // Makes this device the calling thread's current one. A thread that has not used one of the
  // device's streams yet calls it before it passes device memory to another library.
  virtual void UseOnThisThread() {}

 private:
  friend class DeviceBuffer;
  virtual void Free(DeviceBuffer::Kind kind, void* data) = 0;
  void Count(DeviceBuffer::Kind kind, int64_t bytes) {
    if (kind == DeviceBuffer::Kind::kDevice) {
      allocated_bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
  }

  std::atomic<int64_t> allocated_bytes_{0};
};

inline DeviceBuffer::DeviceBuffer(Device* device, Kind kind, void* data, size_t bytes)
    : device_(device), kind_(kind), data_(data), bytes_(bytes) {
  if (data_ != nullptr) device_->Count(kind_, static_cast<int64_t>(bytes_));
}
inline DeviceBuffer::~DeviceBuffer() {
  if (data_ == nullptr) return;
  device_->Count(kind_, -static_cast<int64_t>(bytes_));
  device_->Free(kind_, data_);
}

// Describes this build's CUDA and this host's devices, in words a user can act on: "built without
// CUDA", "built with CUDA 13.0; no device: no NVIDIA driver found", "built with CUDA 13.0; 1
// device: …".
std::string DescribeCuda();
// The number of CUDA devices that can be used; 0 without CUDA, a driver or a device.
int CountCudaDevices();
// Which kernels a device of compute capability 9.0 uses: Hopper's, which have their own numerics
// id, or the portable ones.
enum class DeviceKernels { kOwn, kPortable };
// Errors: kUnimplemented in a build without CUDA, kUnavailable without a driver or device (says
// which), kInvalidArgument for an ordinal beyond the devices there are.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int ordinal,
                                                       DeviceKernels choice = DeviceKernels::kOwn);

}  // namespace tandem::kernels
