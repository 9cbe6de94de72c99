// RMSNorm: y = x / sqrt(mean(x²) + eps) · weight, for each row, or for each head of each row
// (QK-norm).
// Numerics: squares are summed in 16 lanes (lane i takes elements i, i + 16, …) and a fixed tree.
// Thread safety: the calling thread and the threads of `parallel`. Owner: the caller owns all
// memory. Errors: none; a broken REQUIRES ends the process (require.h).
#pragma once

#include <cstdint>

#include "kernels/api/parallel.h"

namespace tandem::kernels {

struct RmsNormArgs {
  const float* x = nullptr;  // [rows][x_stride], groups · size used
  int64_t x_stride = 0;
  int64_t rows = 0;
  int64_t groups = 1;             // vectors normalised separately in each row: heads for QK-norm
  int64_t size = 0;               // elements of each vector
  const float* weight = nullptr;  // [size]
  float eps = 1e-5f;
  float* y = nullptr;  // [rows][y_stride]; y == x (in place) is allowed
  int64_t y_stride = 0;
  uint16_t* y_bf16 = nullptr;  // instead of y, rounded to nearest even
  // When set, the norm is added here (residual += norm(x), a post-norm) and y is not written.
  // [rows][y_stride]; does not overlap x.
  float* residual = nullptr;
};
using RmsNormFn = void (*)(const RmsNormArgs& args, const ParallelFor& parallel);

}  // namespace tandem::kernels
