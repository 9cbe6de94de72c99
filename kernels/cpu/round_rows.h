// Rounds the fp32 activations of a product to bf16 before it. Thread safety: as GemmArgs.
#pragma once

#include "kernels/api/gemm.h"
#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/gemm_plan.h"

namespace tandem::kernels::TANDEM_ISA {

// Rounds rows of fp32 x into scratch, [rows][x_stride], zeros behind k.
TANDEM_INLINE void RoundRows(const GemmArgs& args, int64_t x_stride, const ParallelFor& parallel) {
  const int64_t k = args.w.shape.k;
  uint16_t* rounded = static_cast<uint16_t*>(args.scratch);
  parallel(args.rows, [&](int64_t row, int) {
    const float* x = args.x + row * args.x_stride;
    uint16_t* out = rounded + row * x_stride;
    for (int64_t i = 0; i < x_stride; i += kLanes) {
      StoreBf16Masked(LaneRange(0, x_stride - i), out + i, LoadMasked(LaneRange(0, k - i), x + i));
    }
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
