// A CUDA stream and the Status of what was enqueued on it.
#pragma once

#include <cuda_runtime.h>

#include "absl/status/status.h"
#include "kernels/api/device.h"

namespace tandem::kernels::cuda {

// OK, or a Status naming `call` and CUDA's words for the error.
absl::Status ToStatus(const char* call, cudaError_t error);

class CudaStream final : public DeviceStream {
 public:
  explicit CudaStream(cudaStream_t handle) : handle_(handle) {}
  ~CudaStream() override;

  cudaStream_t handle() const { return handle_; }
  // Keeps the first failure.
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
