// V16 under AVX-512 (F, DQ, BW, VL). v16.h documents it. Thread safety: values.
#pragma once

namespace tandem::kernels::TANDEM_ISA {

inline constexpr bool kHas32Registers = true;

struct V16 {
  __m512 v;
};
struct U16 {  // sixteen uint32 lanes
  __m512i v;
};
using Mask16 = __mmask16;

TANDEM_INLINE V16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
TANDEM_INLINE void Store(float* p, V16 a) { _mm512_storeu_ps(p, a.v); }
TANDEM_INLINE V16 LoadBf16(const uint16_t* p) {
  __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
}
TANDEM_INLINE V16 Set1(float x) { return {_mm512_set1_ps(x)}; }
TANDEM_INLINE V16 Zero() { return {_mm512_setzero_ps()}; }
TANDEM_INLINE V16 Add(V16 a, V16 b) { return {_mm512_add_ps(a.v, b.v)}; }
TANDEM_INLINE V16 Sub(V16 a, V16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TANDEM_INLINE V16 Mul(V16 a, V16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TANDEM_INLINE V16 Div(V16 a, V16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a·b + c with one rounding.
TANDEM_INLINE V16 Fma(V16 a, V16 b, V16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// As x86 defines them: the second operand when either is NaN.
TANDEM_INLINE V16 Max(V16 a, V16 b) { return {_mm512_max_ps(a.v, b.v)}; }
TANDEM_INLINE V16 Min(V16 a, V16 b) { return {_mm512_min_ps(a.v, b.v)}; }
TANDEM_INLINE V16 RoundNearest(V16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}

TANDEM_INLINE V16 Floor(V16 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}
// a·2^n for whole n, where the result is a normal number.
TANDEM_INLINE V16 Scale2(V16 a, V16 n) { return {_mm512_scalef_ps(a.v, n.v)}; }

TANDEM_INLINE __m256 LowHalf(V16 a) { return _mm512_castps512_ps256(a.v); }
TANDEM_INLINE __m256 HighHalf(V16 a) { return _mm512_extractf32x8_ps(a.v, 1); }

// Lanes [begin, end), both clamped to [0, 16].
TANDEM_INLINE Mask16 LaneRange(int64_t begin, int64_t end) {
  int64_t low = begin < 0 ? 0 : (begin > 16 ? 16 : begin);
  int64_t high = end < 0 ? 0 : (end > 16 ? 16 : end);
  return static_cast<Mask16>(((1u << high) - 1u) & ~((1u << low) - 1u));
}
TANDEM_INLINE Mask16 Less(V16 a, V16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ); }
TANDEM_INLINE Mask16 LessEqual(V16 a, V16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ); }
TANDEM_INLINE bool Any(Mask16 mask) { return mask != 0; }
TANDEM_INLINE V16 Select(Mask16 mask, V16 yes, V16 no) {
  return {_mm512_mask_blend_ps(mask, no.v, yes.v)};
}
// Lanes outside the mask: not touched in memory, zero in the result.
TANDEM_INLINE V16 LoadMasked(Mask16 mask, const float* p) {
  return {_mm512_maskz_loadu_ps(mask, p)};
}
TANDEM_INLINE void StoreMasked(Mask16 mask, float* p, V16 a) {
  _mm512_mask_storeu_ps(p, mask, a.v);
}

TANDEM_INLINE U16 LoadU(const uint32_t* p) { return {_mm512_loadu_si512(p)}; }
TANDEM_INLINE U16 LoadBytes(const void* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(static_cast<const __m128i*>(p)))};
}
TANDEM_INLINE void StoreU(uint32_t* p, U16 a) { _mm512_storeu_si512(p, a.v); }
TANDEM_INLINE U16 SetU1(uint32_t x) { return {_mm512_set1_epi32(static_cast<int>(x))}; }
TANDEM_INLINE U16 AddU(U16 a, U16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
TANDEM_INLINE U16 XorU(U16 a, U16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
TANDEM_INLINE U16 AndU(U16 a, U16 b) { return {_mm512_and_si512(a.v, b.v)}; }
template <int kBits>
TANDEM_INLINE U16 ShiftLeftU(U16 a) {
  return {_mm512_slli_epi32(a.v, kBits)};
}
template <int kBits>
TANDEM_INLINE U16 ShiftRightU(U16 a) {
  return {_mm512_srli_epi32(a.v, kBits)};
}
TANDEM_INLINE U16 SelectEqualU(U16 a, uint32_t value, U16 yes, U16 no) {
  return {_mm512_mask_blend_epi32(_mm512_cmpeq_epi32_mask(a.v, SetU1(value).v), no.v, yes.v)};
}
// The low and high words of the 64-bit products.
TANDEM_INLINE void MulWide(U16 a, uint32_t b, U16* low, U16* high) {
  __m512i factor = _mm512_set1_epi32(static_cast<int>(b));
  __m512i even = _mm512_mul_epu32(a.v, factor);
  __m512i odd = _mm512_mul_epu32(_mm512_srli_epi64(a.v, 32), factor);
  low->v = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
  high->v = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
}
TANDEM_INLINE U16 BitsOf(V16 a) { return {_mm512_castps_si512(a.v)}; }
TANDEM_INLINE V16 FromBits(U16 a) { return {_mm512_castsi512_ps(a.v)}; }
// The low byte of each lane.
TANDEM_INLINE void StoreBytes(uint8_t* p, U16 a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a.v));
}
// The low halves of each lane.
TANDEM_INLINE void StoreHalves(uint16_t* p, U16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(a.v));
}
TANDEM_INLINE void StoreHalvesMasked(Mask16 mask, uint16_t* p, U16 a) {
  _mm256_mask_storeu_epi16(p, mask, _mm512_cvtepi32_epi16(a.v));
}
// 32 signed bytes as 16-bit halves of lanes.
TANDEM_INLINE U16 LoadInt8AsHalves(const uint8_t* p) {
  return {_mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// For integral values within int32.
TANDEM_INLINE U16 ToInt(V16 a) { return {_mm512_cvtps_epi32(a.v)}; }
TANDEM_INLINE V16 FromInt(U16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

}  // namespace tandem::kernels::TANDEM_ISA
