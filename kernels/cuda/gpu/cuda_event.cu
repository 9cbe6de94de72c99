#include "kernels/cuda/gpu/cuda_event.h"
#include "kernels/cuda/gpu/cuda_stream.h"

namespace tandem::kernels::cuda {

CudaEvent::~CudaEvent() { cudaEventDestroy(handle_); }

absl::Status CudaEvent::Synchronize() {
  return ToStatus("cudaEventSynchronize", cudaEventSynchronize(handle_));
}

absl::StatusOr<float> CudaEvent::MillisecondsSince(DeviceEvent& start) {
  float milliseconds = 0;
  absl::Status status = ToStatus(
      "cudaEventElapsedTime",
      cudaEventElapsedTime(&milliseconds, static_cast<CudaEvent&>(start).handle_, handle_));
  if (!status.ok()) return status;
  return milliseconds;
}

}  // namespace tandem::kernels::cuda
