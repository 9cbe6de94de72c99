// RMSNorm on a device: norm(x) = x / sqrt(mean(x²) + eps) · weight for each row, in fp32.
// DeviceOps::rms_norm enqueues it. Numerics: a row's squares are summed in 256 strided lanes and a
// fixed tree, whatever the number of rows.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

#include "kernels/api/bf16.h"

namespace tandem::kernels {

struct DeviceRmsNormArgs {
  const float* x = nullptr;         // [rows][size]
  const float* weight = nullptr;    // [size]
  const int32_t* gather = nullptr;  // [rows]: row of x that becomes row i; nullptr: row i
  float eps = 1e-5f;
  int32_t rows = 0;
  int32_t size = 0;
  Bf16Bits* y = nullptr;      // [rows][size], or nullptr
  float* residual = nullptr;  // [rows][size]: residual += norm(x) (a post-norm), or nullptr
};

}  // namespace tandem::kernels
