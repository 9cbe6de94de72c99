// The operators of one instruction-set class, as the class's table names them (table.cc). Each
// operator's header in kernels/api documents it and states its thread safety.
// Thread safety: the operators'.
#pragma once

#include "kernels/api/backend.h"

namespace tandem::kernels::TANDEM_ISA {

size_t PackedBytes(const MatrixShape& shape);
void PackRows(const PackRowsArgs& args);
void Gemm(const GemmArgs& args, const ParallelFor& parallel);
void RmsNorm(const RmsNormArgs& args, const ParallelFor& parallel);
void Rope(const RopeArgs& args, const ParallelFor& parallel);
void GatedActivation(const GatedActivationArgs& args, const ParallelFor& parallel);
void AddInto(const float* x, float* y, int64_t size, const ParallelFor& parallel);
void ScaleBy(float* x, float factor, int64_t size, const ParallelFor& parallel);
void KvWrite(const KvWriteArgs& args, const ParallelFor& parallel);
void KvRead(const KvReadArgs& args);
void Attention(const AttentionArgs& args, const ParallelFor& parallel);
void AttentionPartials(const AttentionPartialsArgs& args, const ParallelFor& parallel);
void MergePartials(const MergePartialsArgs& args, const ParallelFor& parallel);
SamplingResult Sample(const SamplingArgs& args);
double PeakRate();
double Int8PeakRate();

}  // namespace tandem::kernels::TANDEM_ISA
