// The host's version of kernels/cuda/simt/launch.h: runs a kernel on the emulated thread block.
// Kernels include it through simt/launch.h only.
// Thread safety: the stream's. REQUIRES: the stream is an emulated one.
#pragma once

#include <cstdint>

#include "kernels/cuda/emulator/emulated_stream.h"
#include "kernels/cuda/emulator/thread_block.h"

namespace tandem::kernels::emulated {

using LaunchShape = Grid;

template <typename Kernel>
void Launch(const LaunchShape& shape, const typename Kernel::Params& params, DeviceStream& stream) {
  if (shape.x == 0 || shape.y == 0) return;
  const auto work = [shape, params](uint64_t seed) {
    RunGrid(
        shape, seed,
        [](const void* context) {
          Kernel::Run(*static_cast<const typename Kernel::Params*>(context));
        },
        &params);
  };
  static_cast<EmulatedStream&>(stream).Launch(int64_t{shape.x} * shape.y, work);
}

}  // namespace tandem::kernels::emulated
