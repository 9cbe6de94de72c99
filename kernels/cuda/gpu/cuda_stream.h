// A CUDA stream, and the Status of the work enqueued on it.
// Thread safety: one thread at a time. Owner: the engine; a stream must be destroyed before its
// device. It owns the handle.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "kernels/api/device.h"

namespace tandem::kernels::cuda {

// OK, or a Status that names `call` and CUDA's name and text for the error.
absl::Status ToStatus(const char* call, cudaError_t error);

class CudaStream final : public DeviceStream {
 public:
  explicit CudaStream(cudaStream_t handle) : handle_(handle) {}
  ~CudaStream() override;

  cudaStream_t handle() const { return handle_; }
  // Records `error` as the stream's status if it is a failure and the first one.
  void Check(const char* call, cudaError_t error);

  void CopyIn(void* device, const void* host, size_t bytes) override;
  void CopyOut(void* host, const void* device, size_t bytes) override;
  void CopyWithin(void* to, const void* from, size_t bytes) override;
  void Fill(void* device, int byte, size_t bytes) override;
  void Record(DeviceEvent& event) override;
  void Wait(DeviceEvent& event) override;
  absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(absl::FunctionRef<void()> enqueue) override;
  void Launch(DeviceGraph& graph) override;
  absl::Status Synchronize() override;
  const absl::Status& status() const override { return status_; }

 private:
  const cudaStream_t handle_;
  absl::Status status_;
};

}  // namespace tandem::kernels::cuda
