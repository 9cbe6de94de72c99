// Products of bf16 and of int8 weights on tile registers, for classes that have them. There,
// gemm.cc calls them for WeightType::kBf16 and WeightType::kInt8. Thread safety: the calling thread
// and the threads of `parallel`.
#pragma once

#include "kernels/api/gemm.h"
#include "kernels/cpu/tile_registers.h"

namespace tandem::kernels::TANDEM_ISA {

// See PackedBytesFn, PackRowsFn and GemmFn. Only where kHasTiles.
size_t TilePackedBytes(const MatrixShape& shape);
void TilePackRows(const PackRowsArgs& args);
void TileGemm(const GemmArgs& args, const ParallelFor& parallel);
// kInt8: the bits of every other class.
size_t TileInt8PackedBytes(const MatrixShape& shape);
void TileInt8PackRows(const PackRowsArgs& args);
void TileInt8Gemm(const GemmArgs& args, const ParallelFor& parallel);

// Multiply-adds that one thread does a second at most, bf16 and int8.
double TilePeakRate();
double TileInt8PeakRate();

}  // namespace tandem::kernels::TANDEM_ISA
