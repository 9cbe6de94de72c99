// The inner loop of every matrix product of the CPU classes (projections, q·k, p·v): `R` rows of A
// against `NV` vectors of B, accumulators in registers.
//   acc[r][v] = Σ_k A[k][r] · B[k][v]       each element one FMA chain, k ascending
// So an element's bits do not depend on R, on NV or on how calls divide the range of k.
// Thread safety: pure functions.
#pragma once

#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

// The most rows of A at once, and how many vectors of B go with `rows` rows: as many accumulators
// as the register file holds beside NV vectors of B (32 registers under AVX-512; 16, two to a V16,
// under AVX2).
inline constexpr int kMaxBlockRows = kHas32Registers ? 12 : 6;
constexpr int BlockVectors(int rows) {
  if (kHas32Registers) return rows <= 6 ? 4 : 2;
  return rows == 1 ? 4 : (rows <= 3 ? 2 : 1);
}

// A[k][r] lies at a[k·kAStep + r·kARow]; B[k][v] at b[v] + k·b_step.
template <int R, int NV, int kAStep, int kARow, typename T>
TANDEM_INLINE void FmaBlock(const float* a, const T* const (&b)[NV], int64_t b_step, int64_t count,
                            V16 (&acc)[R][NV]) {
  const int64_t end = count * b_step;
  for (int64_t offset = 0; offset < end; offset += b_step) {
    V16 wide[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) wide[v] = LoadWide(b[v] + offset);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      V16 x = Set1(a[r * kARow]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = Fma(x, wide[v], acc[r][v]);
    }
    a += kAStep;
  }
}

}  // namespace tandem::kernels::TANDEM_ISA
