// Rotary position embedding, in place, on pairs (i, i + head_dim/2) of each head ("half-split"):
//   x'[i]       = x[i]·cos − x[i + h]·sin
//   x'[i + h]   = x[i + h]·cos + x[i]·sin      with h = head_dim / 2
// The tables hold fp32 cosines and sines of angles that were computed in double when the model was
// loaded.
// Thread safety: the calling thread and the threads of `parallel`. Owner: the caller owns all
// memory. Errors: none; a broken REQUIRES ends the process (require.h).
#pragma once

#include <cstdint>

#include "kernels/api/parallel.h"

namespace tandem::kernels {

struct RopeArgs {
  float* x = nullptr;  // [rows][x_stride], num_heads · head_dim used
  int64_t x_stride = 0;
  int64_t rows = 0;
  int32_t num_heads = 0;
  int32_t head_dim = 0;                // even
  const int32_t* positions = nullptr;  // [rows], each within the tables
  const float* cos = nullptr;          // [positions][head_dim / 2]
  const float* sin = nullptr;          // [positions][head_dim / 2]
};
using RopeFn = void (*)(const RopeArgs& args, const ParallelFor& parallel);

}  // namespace tandem::kernels
