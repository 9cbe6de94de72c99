// V16: sixteen fp32 lanes, the unit in which every CPU kernel is written once. One __m512 under
// AVX-512, two __m256 under AVX2. Each operation is the same IEEE operation in each lane, and each
// reduction the same tree, so both classes give the same bits.
//
// Each class compiles this folder once, into a namespace of its own (TANDEM_ISA). Everything here
// is force-inlined or has internal linkage: otherwise the linker could merge a function of the wide
// class with that of baseline code, and older processors would crash. Thread safety: values.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/cpu/inline.h"

#if defined(__AVX512F__)
#include "kernels/cpu/v16_avx512.h"
#else
#include "kernels/cpu/v16_avx2.h"
#endif

namespace tandem::kernels::TANDEM_ISA {

// In place of a mask: all sixteen lanes.
struct AllLanes {};
TANDEM_INLINE V16 LoadMasked(AllLanes, const float* p) { return Load(p); }
TANDEM_INLINE void StoreMasked(AllLanes, float* p, V16 a) { Store(p, a); }

// Sums eight lanes in the tree (0+4)+(2+6) … that both classes share.
TANDEM_INLINE float ReduceAdd8(__m256 v) {
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
TANDEM_INLINE float ReduceMax8(__m256 v) {
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
TANDEM_INLINE float ReduceAdd(V16 v) { return ReduceAdd8(_mm256_add_ps(LowHalf(v), HighHalf(v))); }
TANDEM_INLINE float ReduceMax(V16 v) { return ReduceMax8(_mm256_max_ps(LowHalf(v), HighHalf(v))); }

// A weight or cache element as stored. Bf16 is the upper half of an fp32.
struct Bf16 {
  uint16_t bits;
};
TANDEM_INLINE V16 LoadWide(const float* p) { return Load(p); }
TANDEM_INLINE V16 LoadWide(const Bf16* p) { return LoadBf16(&p->bits); }

// Rounds to nearest even; a NaN stays a (quiet) NaN.
TANDEM_INLINE Bf16 RoundToBf16(float x) {
  uint32_t bits = 0;
  __builtin_memcpy(&bits, &x, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}
TANDEM_INLINE float RoundTo(float x, const float*) { return x; }
TANDEM_INLINE Bf16 RoundTo(float x, const Bf16*) { return RoundToBf16(x); }
TANDEM_INLINE float Widen(float x) { return x; }
TANDEM_INLINE float Widen(Bf16 x) {
  uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float out = 0;
  __builtin_memcpy(&out, &bits, sizeof(out));
  return out;
}

}  // namespace tandem::kernels::TANDEM_ISA
