// Matrix products on a device: y[m, n] = Σ_k x[m, k] · w[n, k] (+ bias[n]) (+ y[m, n]), with bf16
// or rounded activations, weights by DeviceWeightType and fp32 accumulators. DeviceOps::gemm
// enqueues one. Numerics: a row of y depends on its row of x and on w only, whatever tile computes
// it.
//
// All pointers are device memory, except where a comment says otherwise; the caller owns that
// memory and keeps it unchanged until the enqueued work is done. Thread safety: the stream's.
// Errors: the stream's status; a broken REQUIRES ends the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/bf16.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/api/elementwise.h"

namespace tandem::kernels {

struct DeviceGemmArgs {
  const Bf16Bits* x = nullptr;  // [rows][k], 16-byte boundary
  const Bf16Bits* w = nullptr;  // [n][k], 16-byte boundary
  // Types other than kBf16 use these instead of w: rows as device_matrix.h packs them, and their
  // scales, both on 16-byte boundaries.
  DeviceWeightType type = DeviceWeightType::kBf16;
  const void* packed = nullptr;
  const void* scales = nullptr;
  // kInt8 and kFp8Rows use these instead of x: the values and scales that `quantise` wrote for it.
  const void* x_rounded = nullptr;
  const float* x_scales = nullptr;
  int32_t rows = 0;
  int32_t n = 0;
  int32_t k = 0;                // a multiple of 8
  const float* bias = nullptr;  // [n] or nullptr
  bool add_to_y = false;
  float* y = nullptr;  // [rows][n], 8-byte boundary
  // When set, rows of a gate and of an up projection alternate in w. The product then writes
  // act(gate) · up, rounded to bf16, into `gated`, [rows][n / 2], 16-byte boundary, and does not
  // write y. The bits are those of DeviceOps::gated on the sums. REQUIRES: n is a multiple of 16,
  // as it is where another product reads the result; not add_to_y.
  Bf16Bits* gated = nullptr;
  GateActivation activation = GateActivation::kSilu;
  // The device's number of multiprocessors, from which the kernel chooses a tile. It affects speed
  // and no bit.
  int32_t multiprocessors = 1;
  // An index of DeviceOps::gemm_tile; negative: the kernel chooses by shape. It affects no bit.
  int32_t tile = -1;
};

// One of the tiles that a product has for a type of weights. Any of them computes any product.
struct DeviceGemmTile {
  int32_t rows = 0, n = 0;  // rows and columns of y that a block computes
  int32_t k = 0;            // columns of x and w that one stage holds
  int32_t stages = 0;
  size_t shared_bytes = 0;  // 0: there is no tile of this index
  int32_t cluster = 1;      // blocks that share operands
};

}  // namespace tandem::kernels
