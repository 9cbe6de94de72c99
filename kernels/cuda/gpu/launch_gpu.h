// The GPU's version of simt/launch.h. Kernels include it through simt/launch.h only.
// Thread safety: the stream's. REQUIRES: the stream is a CudaStream.
#pragma once

#include "kernels/cuda/gpu/cuda_stream.h"
#include "kernels/cuda/gpu/simt_gpu.h"
#include "kernels/cuda/hopper_types.h"

namespace tandem::kernels::cuda {

// A grid in one or two dimensions; `shared_bytes` is dynamic shared memory.
struct LaunchShape {
  int x = 1, y = 1;
  int threads = 0;
  size_t shared_bytes = 0;
  int cluster = 1;  // blocks of a cluster, neighbours in x; divides x
};

template <typename Kernel>
__global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocksPerMultiprocessor)
    KernelEntry(const __grid_constant__ typename Kernel::Params params) {
  LetSuccessorStart();
  if constexpr (!StartsEarly<Kernel>) WaitForPredecessor();
  Kernel::Run(params);
}

// Whether the kernel waits for its predecessor itself, so that its blocks may start before that one
// ends: code of an earlier architecture than Hopper cannot, whatever device it runs on.
template <typename Kernel>
bool WaitsItself() {
  static const bool waits = [] {
    cudaFuncAttributes attributes = {};
    const cudaError_t error = cudaFuncGetAttributes(&attributes, KernelEntry<Kernel>);
    return error == cudaSuccess && attributes.ptxVersion >= 90;
  }();
  return waits;
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
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (WaitsItself<Kernel>()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(shape.cluster), 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(shape.x), static_cast<unsigned>(shape.y));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = on.handle();
  config.attrs = attributes;
  config.numAttrs = count;
  on.Check(Kernel::kName, cudaLaunchKernelEx(&config, KernelEntry<Kernel>, params));
}

}  // namespace tandem::kernels::cuda
