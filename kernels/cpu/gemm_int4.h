// Products of four-bit weights in groups with activations rounded to int8. gemm.cc calls them for
// WeightType::kInt4 and kQ4K. Sums of a group are exact integers, so every class gives the same
// bits. Thread safety: the calling thread and the threads of `parallel`.
#pragma once

#include "kernels/api/gemm.h"
#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

constexpr bool IsInt4(WeightType type) {
  return type == WeightType::kInt4 || type == WeightType::kQ4K;
}

// See PackedBytesFn, PackRowsFn and GemmFn.
size_t Int4PackedBytes(const MatrixShape& shape);
void Int4PackRows(const PackRowsArgs& args);
void Int4Gemm(const GemmArgs& args, const ParallelFor& parallel);

}  // namespace tandem::kernels::TANDEM_ISA
