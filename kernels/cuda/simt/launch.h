// Launch<Kernel>(shape, params, stream) runs `Kernel::Run(params)` in every thread of a grid. A
// kernel is a type with `Params` (a plain value), `static void Run(const Params&)`, kName, kThreads
// and kBlocksPerMultiprocessor. Under nvcc the grid runs on the GPU (gpu/launch_gpu.h), under a
// host compiler in the emulated thread block (emulator/launch_host.h). Thread safety: the stream's.
// Errors: the stream's status.
#pragma once

#include "kernels/cuda/simt/simt.h"

#if defined(__CUDACC__)
#include "kernels/cuda/gpu/launch_gpu.h"  // IWYU pragma: export
#else
#include "kernels/cuda/emulator/launch_host.h"  // IWYU pragma: export
#endif
