// The GPU's version of simt/launch.h. Kernels include it through simt/launch.h only.
// Thread safety: the stream's. REQUIRES: the stream is a CudaStream.
#pragma once

#include "kernels/cuda/gpu/cuda_stream.h"

namespace tandem::kernels::cuda {

// A grid in one or two dimensions; `shared_bytes` is dynamic shared memory.
struct LaunchShape {
  int x = 1, y = 1;
  int threads = 0;
  size_t shared_bytes = 0;
};

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocksPerMultiprocessor)
    KernelEntry(const __grid_constant__ typename Kernel::Params params) {
  Kernel::Run(params);
}

template <typename Kernel>
void Launch(const LaunchShape& shape, const typename Kernel::Params& params, DeviceStream& stream) {
  if (shape.x == 0 || shape.y == 0) return;
  CudaStream& on = static_cast<CudaStream&>(stream);
  // A kernel that needs more than 48 KB must request it once. Repeating the request is cheap and
  // needs no state.
  if (shape.shared_bytes > (48 << 10)) {
    on.Check("cudaFuncSetAttribute",
             cudaFuncSetAttribute(KernelEntry<Kernel>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                  static_cast<int>(shape.shared_bytes)));
  }
  const dim3 grid(static_cast<unsigned>(shape.x), static_cast<unsigned>(shape.y));
  KernelEntry<Kernel>
      <<<grid, static_cast<unsigned>(shape.threads), shape.shared_bytes, on.handle()>>>(params);
  on.Check(Kernel::kName, cudaGetLastError());
}

}  // namespace tandem::kernels::cuda
