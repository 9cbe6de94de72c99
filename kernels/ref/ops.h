// The reference operators: naive loops in double, the oracle of the differential tests. They may
// allocate memory, are not tuned, and pack weights as plain row-major matrices. Thread safety: as
// the operators' headers in kernels/api.
#pragma once

#include <cmath>
#include <cstring>

#include "kernels/api/backend.h"

namespace tandem::kernels::ref {

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

inline double Activate(GateActivation activation, double g) {
  if (activation == GateActivation::kSilu) return g / (1.0 + std::exp(-g));
  return 0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
}

// The upper half of an fp32, rounded to nearest even; NaN stays NaN.
inline uint16_t ToBf16(float x) {
  uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof(bits));
  if (x != x) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
inline float FromBf16(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x = 0;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

}  // namespace tandem::kernels::ref
