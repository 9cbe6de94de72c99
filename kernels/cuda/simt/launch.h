// Launch<Kernel>(shape, params, stream): runs `Kernel::Run(params)` in every thread of a grid. A
// kernel is a type with `Params` (a plain value) and `static void Run(const Params&)`.
#pragma once

#include "kernels/cuda/simt/simt.h"

#if defined(__CUDACC__)
#include "kernels/cuda/gpu/launch_gpu.h"  // IWYU pragma: export
#else
#include "kernels/cuda/emulator/launch_host.h"  // IWYU pragma: export
#endif
