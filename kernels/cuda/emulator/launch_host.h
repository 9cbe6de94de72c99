// The host's version of kernels/cuda/simt/launch.h: runs a kernel on the emulated thread block.
// Kernels include it through simt/launch.h only.
// Thread safety: the stream's. REQUIRES: the stream is an emulated one.
#pragma once

#include <cstdint>

#include "kernels/cuda/emulator/emulated_stream.h"
#include "kernels/cuda/emulator/thread_block.h"
#include "kernels/cuda/hopper_types.h"

namespace tandem::kernels::emulated {

using LaunchShape = Grid;

template <typename Kernel>
void Launch(const LaunchShape& shape, const typename Kernel::Params& params, DeviceStream& stream) {
  if (shape.x == 0 || shape.y == 0) return;
  const auto run = [shape, params](uint64_t seed, Predecessor* before) {
    const GridBody body = {[](const void* context) {
                             Kernel::Run(*static_cast<const typename Kernel::Params*>(context));
                           },
                           &params};
    RunGrid(shape, seed, body, before);
  };
  static_cast<EmulatedStream&>(stream).Launch(int64_t{shape.x} * shape.y,
                                              {run, true, StartsEarly<Kernel>});
}

}  // namespace tandem::kernels::emulated
