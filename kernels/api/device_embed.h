// Token embedding on a device: y[r] = scale · table[tokens[r]], from bf16 to the fp32 residual
// stream. DeviceOps::embed enqueues it.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstdint>

#include "kernels/api/bf16.h"

namespace tandem::kernels {

struct DeviceEmbedArgs {
  const int32_t* tokens = nullptr;  // [rows]
  const Bf16Bits* table = nullptr;  // [vocab][size]
  float scale = 1.0f;
  int32_t rows = 0;
  int32_t size = 0;
  float* y = nullptr;  // [rows][size]
};

}  // namespace tandem::kernels
