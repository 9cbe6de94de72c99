// Sums of products of unsigned by signed bytes, exact in int32, in the best instructions a class
// has: one `vpdpbusd` with VNNI, two `vpmaddwd` elsewhere. Thread safety: pure functions.
#pragma once

#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

// Hides a value's computation from the compiler. Without it, the compiler writes sums that an
// epilogue reads to the stack in every step of the loop before it.
template <typename Lanes>
TANDEM_INLINE void Settle(Lanes& x) {
#if defined(__AVX512F__)
  asm("" : "+v"(x.v));
#else
  asm("" : "+x"(x.low), "+x"(x.high));
#endif
}

#if defined(__AVX512VNNI__)

// Both call Settle: otherwise g++ 12 copies a loop's sums before and after each product, which
// takes twice as many instructions as the products.

// sum[i] + Σ_{j<4} u[4i + j]·s[4i + j].
TANDEM_INLINE U16 DotBytes(U16 u, U16 s, U16 sum) {
  U16 next = {_mm512_dpbusd_epi32(sum.v, u.v, s.v)};
  Settle(next);
  return next;
}
// sum[i] + a[2i]·b[2i] + a[2i + 1]·b[2i + 1], of signed 16-bit halves.
TANDEM_INLINE U16 DotHalves(U16 a, U16 b, U16 sum) {
  U16 next = {_mm512_dpwssd_epi32(sum.v, a.v, b.v)};
  Settle(next);
  return next;
}

#elif defined(__AVX512F__)

TANDEM_INLINE U16 DotHalves(U16 a, U16 b, U16 sum) {
  return {_mm512_add_epi32(sum.v, _mm512_madd_epi16(a.v, b.v))};
}
TANDEM_INLINE U16 DotBytes(U16 u, U16 s, U16 sum) {
  const U16 even_u = AndU(u, SetU1(0x00ff00ffu)), odd_u = {_mm512_srli_epi16(u.v, 8)};
  const U16 even_s = {_mm512_srai_epi16(_mm512_slli_epi16(s.v, 8), 8)};
  const U16 odd_s = {_mm512_srai_epi16(s.v, 8)};
  return DotHalves(odd_u, odd_s, DotHalves(even_u, even_s, sum));
}

#else

TANDEM_INLINE U16 DotHalves(U16 a, U16 b, U16 sum) {
  return {_mm256_add_epi32(sum.low, _mm256_madd_epi16(a.low, b.low)),
          _mm256_add_epi32(sum.high, _mm256_madd_epi16(a.high, b.high))};
}
TANDEM_INLINE U16 DotBytes(U16 u, U16 s, U16 sum) {
  const U16 even_u = AndU(u, SetU1(0x00ff00ffu));
  const U16 odd_u = {_mm256_srli_epi16(u.low, 8), _mm256_srli_epi16(u.high, 8)};
  const U16 even_s = {_mm256_srai_epi16(_mm256_slli_epi16(s.low, 8), 8),
                      _mm256_srai_epi16(_mm256_slli_epi16(s.high, 8), 8)};
  const U16 odd_s = {_mm256_srai_epi16(s.low, 8), _mm256_srai_epi16(s.high, 8)};
  return DotHalves(odd_u, odd_s, DotHalves(even_u, even_s, sum));
}

#endif

// Four bytes in every lane.
TANDEM_INLINE U16 BroadcastQuad(const void* p) {
  uint32_t quad = 0;
  __builtin_memcpy(&quad, p, sizeof(quad));
  return SetU1(quad);
}

// |x|.
TANDEM_INLINE V16 Magnitude(V16 x) { return FromBits(AndU(BitsOf(x), SetU1(0x7fffffffu))); }

// The factor that maps magnitudes up to `most` onto [0, 127], and its inverse; both 0 when all
// values are (nearly) 0.
struct Int8Scale {
  float factor, scale;
};
TANDEM_INLINE Int8Scale ScaleFor(float most) {
  if (!(most > 1e-30f)) return {0, 0};
  return {127.0f / most, most / 127.0f};
}

// To the nearest integer (ties to even) in [-127, 127], of values that ScaleFor's factor scaled.
TANDEM_INLINE V16 RoundToInt8(V16 scaled) {
  return Min(Max(RoundNearest(scaled), Set1(-127.0f)), Set1(127.0f));
}

}  // namespace tandem::kernels::TANDEM_ISA
