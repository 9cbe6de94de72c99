// bf16 pairs and their dot products, for classes compiled with AVX512-BF16; and the exponential of
// the softmax whose scores carry log2 e, there and in classes with tile registers.
//
// One `vdpbf16ps` adds two products to each of sixteen fp32 lanes: first that of the odd elements,
// then that of the even ones, each with one rounding, subnormals taken as zero. A chain of them is
// a fixed order, as a chain of FMAs is. Thread safety: pure functions.
#pragma once

#include "kernels/cpu/tile_registers.h"
#include "kernels/cpu/vec_math.h"

namespace tandem::kernels::TANDEM_ISA {

#if defined(__AVX512BF16__) || defined(TANDEM_TILE_CLASS)

// 2^x for x in [0, 1]: degree 5, error below 2e-7, 2^0 exactly 1.
TANDEM_INLINE V16 Exp2OfFraction(V16 x) {
  constexpr float kCoefficients[] = {1.867130515e-3f, 9.017028846e-3f, 5.579991266e-2f,
                                     2.401644439e-1f, 6.931512952e-1f, 1.0f};
  return Polynomial(kCoefficients, x);
}
inline constexpr float kLog2E = 1.44269504088896341f;

#endif

#if defined(__AVX512BF16__)

// Sixteen pairs of bf16.
struct Pairs16 {
  __m512i v;
};

TANDEM_INLINE Pairs16 LoadPairs(const void* p) { return {_mm512_loadu_si512(p)}; }
TANDEM_INLINE Pairs16 BroadcastPair(const void* p) {
  int pair = 0;
  __builtin_memcpy(&pair, p, sizeof(pair));
  return {_mm512_set1_epi32(pair)};
}
TANDEM_INLINE Pairs16 AndPairs(Pairs16 a, uint32_t mask) {
  return {_mm512_and_si512(a.v, _mm512_set1_epi32(static_cast<int>(mask)))};
}
TANDEM_INLINE V16 Dot(Pairs16 a, Pairs16 b, V16 sum) {
  return {
      _mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(a.v), reinterpret_cast<__m512bh>(b.v))};
}
// Rounds to nearest even; subnormals become zero.
TANDEM_INLINE __m256i RoundToBf16x16(V16 x) {
  return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v));
}
TANDEM_INLINE void StoreBf16(uint16_t* p, V16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), RoundToBf16x16(x));
}
TANDEM_INLINE void StoreBf16Masked(Mask16 mask, uint16_t* p, V16 x) {
  _mm256_mask_storeu_epi16(p, mask, RoundToBf16x16(x));
}

// 2^t, exactly 0 for t = -inf; NaN stays NaN. The scaling is one instruction. The only exponential
// of this class's softmax.
TANDEM_INLINE V16 Exp2(V16 t) {
  // t minus the greatest integer not above it; 0 for infinities.
  const V16 fraction = {_mm512_reduce_ps(t.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  return {_mm512_scalef_ps(Exp2OfFraction(fraction).v, t.v)};
}

#elif defined(TANDEM_TILE_CLASS)

// 2^t for t <= 0, exactly 0 below -126; NaN stays NaN. Tiles take smaller numbers as 0 in any case.
// The only exponential of this class's softmax over a bf16 cache.
TANDEM_INLINE V16 Exp2(V16 t) {
  const V16 whole = Floor(t);
  const V16 power = Scale2(Exp2OfFraction(Sub(t, whole)), whole);
  return Select(Less(t, Set1(-126.0f)), Zero(), power);
}

#endif

}  // namespace tandem::kernels::TANDEM_ISA
