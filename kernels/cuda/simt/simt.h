// The instructions of a GPU thread that kernels may use, in two versions: under nvcc the GPU's own
// (kernels/cuda/gpu), under a host compiler those of an emulated thread block
// (kernels/cuda/emulator). So tests on hosts without a GPU run, unchanged, every kernel written
// against this header.
//
// Vocabulary: a block of `threads` threads (a multiple of 32) in one dimension, warps of 32 lanes
// that stay converged at every collective (Sync*, Shuffle*, LoadMatrix*, Mma).
// Thread safety: called by threads of a block; all lanes of a warp call a collective together.
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__CUDACC__)
#include "kernels/cuda/gpu/simt_gpu.h"  // IWYU pragma: export
#else
#include "kernels/cuda/emulator/simt_host.h"  // IWYU pragma: export
#endif

namespace tandem::kernels::TANDEM_SIMT {

inline constexpr int kWarpSize = 32;

// A bf16 value; conversions round to nearest even, NaN stays NaN.
struct Bf16 {
  uint16_t bits;
};
TANDEM_BOTH inline float ToFloat(Bf16 x) { return BitsToFloat(uint32_t{x.bits} << 16); }
TANDEM_DEVICE Bf16 ToBf16(float x) { return {static_cast<uint16_t>(PackBf16(x, 0.0f))}; }

// Two neighbouring values, which one instruction loads or stores.
struct alignas(8) FloatPair {
  float first, second;
};

// What an addition ignores: x + −0 is x, the sign of a zero included.
TANDEM_DEVICE float NegativeZero() { return BitsToFloat(0x80000000u); }

TANDEM_DEVICE int LaneIndex() { return ThreadIndex() % kWarpSize; }
TANDEM_DEVICE int WarpIndex() { return ThreadIndex() / kWarpSize; }

// Sum over a warp by a fixed tree; every lane gets it.
TANDEM_DEVICE float WarpSum(float x) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) x += ShuffleXor(x, mask);
  return x;
}

TANDEM_DEVICE float WarpMax(float x) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) x = Max(x, ShuffleXor(x, mask));
  return x;
}

// Sum over a block by a fixed tree: lanes, then warps in index order. `shared` holds one float for
// each warp and is free for reuse after the caller's next SyncThreads.
TANDEM_DEVICE float BlockSum(float x, float* shared) {
  x = WarpSum(x);
  if (LaneIndex() == 0) shared[WarpIndex()] = x;
  SyncThreads();
  float sum = 0;
  for (int warp = 0; warp < BlockThreads() / kWarpSize; ++warp) sum += shared[warp];
  return sum;
}

}  // namespace tandem::kernels::TANDEM_SIMT
