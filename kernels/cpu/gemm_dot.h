// Products of bf16 weights by `vdpbf16ps`, for classes compiled with AVX512-BF16. gemm.cc calls
// them for WeightType::kBf16. Thread safety: the calling thread and the threads of `parallel`.
#pragma once

#include "kernels/api/gemm.h"
#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

#if defined(__AVX512BF16__)
inline constexpr bool kHasDotProducts = true;
#else
inline constexpr bool kHasDotProducts = false;
#endif

// See PackedBytesFn, PackRowsFn and GemmFn. Only where kHasDotProducts.
size_t DotPackedBytes(const MatrixShape& shape);
void DotPackRows(const PackRowsArgs& args);
void DotGemm(const GemmArgs& args, const ParallelFor& parallel);

}  // namespace tandem::kernels::TANDEM_ISA
