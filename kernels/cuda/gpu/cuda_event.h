// A CUDA event. Thread safety: one thread at a time. Owner: the engine; an event must be destroyed
// before its device. It owns the handle.
#pragma once

#include <cuda_runtime.h>

#include "kernels/api/device.h"

namespace tandem::kernels::cuda {

class CudaEvent final : public DeviceEvent {
 public:
  explicit CudaEvent(cudaEvent_t handle) : handle_(handle) {}
  ~CudaEvent() override;

  cudaEvent_t handle() const { return handle_; }
  absl::Status Synchronize() override;
  absl::StatusOr<float> MillisecondsSince(DeviceEvent& start) override;

 private:
  const cudaEvent_t handle_;
};

}  // namespace tandem::kernels::cuda
