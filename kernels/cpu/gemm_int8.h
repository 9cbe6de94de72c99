// Products of int8 weights with activations rounded to int8 row by row. gemm.cc calls them for
// WeightType::kInt8. Sums are exact integers, so every class gives the same bits.
// Thread safety: the calling thread and the threads of `parallel`.
#pragma once

#include "kernels/api/gemm.h"
#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

// See PackedBytesFn, PackRowsFn and GemmFn.
size_t Int8PackedBytes(const MatrixShape& shape);
void Int8PackRows(const PackRowsArgs& args);
void Int8Gemm(const GemmArgs& args, const ParallelFor& parallel);

}  // namespace tandem::kernels::TANDEM_ISA
