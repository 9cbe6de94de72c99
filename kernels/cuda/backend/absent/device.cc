// The CUDA functions of kernels/api/device.h in a build without a CUDA toolkit. Each returns an
// error that says so.
#include "kernels/api/device.h"

namespace tandem::kernels {

std::string DescribeCuda() { return "built without CUDA"; }

int CountCudaDevices() { return 0; }

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(int, DeviceKernels) {
  return absl::UnimplementedError(
      "this build has no CUDA backend: configure with TANDEM_CUDA=ON and a CUDA toolkit");
}

}  // namespace tandem::kernels
