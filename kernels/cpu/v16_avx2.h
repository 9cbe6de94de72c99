// V16 under AVX2 and FMA: two halves of eight lanes. v16.h documents it. Thread safety: values.
#pragma once

namespace tandem::kernels::TANDEM_ISA {

inline constexpr bool kHas32Registers = false;

struct V16 {
  __m256 low, high;
};
struct U16 {  // sixteen uint32 lanes
  __m256i low, high;
};
struct Mask16 {  // all ones or all zeros in each lane
  __m256 low, high;
};

TANDEM_INLINE V16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
TANDEM_INLINE void Store(float* p, V16 a) {
  _mm256_storeu_ps(p, a.low);
  _mm256_storeu_ps(p + 8, a.high);
}
TANDEM_INLINE __m256 WidenBf16Half(const uint16_t* p) {
  __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}
TANDEM_INLINE V16 LoadBf16(const uint16_t* p) { return {WidenBf16Half(p), WidenBf16Half(p + 8)}; }
TANDEM_INLINE V16 Set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
TANDEM_INLINE V16 Zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
TANDEM_INLINE V16 Add(V16 a, V16 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
TANDEM_INLINE V16 Sub(V16 a, V16 b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
TANDEM_INLINE V16 Mul(V16 a, V16 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
TANDEM_INLINE V16 Div(V16 a, V16 b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
// a·b + c with one rounding.
TANDEM_INLINE V16 Fma(V16 a, V16 b, V16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
// As x86 defines them: the second operand when either is NaN.
TANDEM_INLINE V16 Max(V16 a, V16 b) {
  return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}
TANDEM_INLINE V16 Min(V16 a, V16 b) {
  return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}
TANDEM_INLINE V16 RoundNearest(V16 a) {
  return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.high, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TANDEM_INLINE V16 Floor(V16 a) {
  return {_mm256_round_ps(a.low, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC),
          _mm256_round_ps(a.high, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}

TANDEM_INLINE __m256 LowHalf(V16 a) { return a.low; }
TANDEM_INLINE __m256 HighHalf(V16 a) { return a.high; }

// Lanes [begin, end).
TANDEM_INLINE Mask16 LaneRange(int64_t begin, int64_t end) {
  int low = begin < 0 ? 0 : (begin > 16 ? 16 : static_cast<int>(begin));
  int high = end < 0 ? 0 : (end > 16 ? 16 : static_cast<int>(end));
  __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  __m256i upper_lane = _mm256_add_epi32(lane, _mm256_set1_epi32(8));
  __m256i before = _mm256_set1_epi32(low - 1), after = _mm256_set1_epi32(high);
  return {_mm256_castsi256_ps(
              _mm256_and_si256(_mm256_cmpgt_epi32(lane, before), _mm256_cmpgt_epi32(after, lane))),
          _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(upper_lane, before),
                                               _mm256_cmpgt_epi32(after, upper_lane)))};
}
TANDEM_INLINE Mask16 Less(V16 a, V16 b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ)};
}
TANDEM_INLINE Mask16 LessEqual(V16 a, V16 b) {
  return {_mm256_cmp_ps(a.low, b.low, _CMP_LE_OQ), _mm256_cmp_ps(a.high, b.high, _CMP_LE_OQ)};
}
TANDEM_INLINE bool Any(Mask16 mask) {
  return (_mm256_movemask_ps(mask.low) | _mm256_movemask_ps(mask.high)) != 0;
}
TANDEM_INLINE V16 Select(Mask16 mask, V16 yes, V16 no) {
  return {_mm256_blendv_ps(no.low, yes.low, mask.low),
          _mm256_blendv_ps(no.high, yes.high, mask.high)};
}
// Lanes outside the mask: not touched in memory, zero in the result.
TANDEM_INLINE V16 LoadMasked(Mask16 mask, const float* p) {
  return {_mm256_maskload_ps(p, _mm256_castps_si256(mask.low)),
          _mm256_maskload_ps(p + 8, _mm256_castps_si256(mask.high))};
}
TANDEM_INLINE void StoreMasked(Mask16 mask, float* p, V16 a) {
  _mm256_maskstore_ps(p, _mm256_castps_si256(mask.low), a.low);
  _mm256_maskstore_ps(p + 8, _mm256_castps_si256(mask.high), a.high);
}

TANDEM_INLINE U16 LoadU(const uint32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
TANDEM_INLINE U16 LoadBytes(const void* p) {
  const char* bytes = static_cast<const char*>(p);
  return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes))),
          _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(bytes + 8)))};
}
TANDEM_INLINE void StoreU(uint32_t* p, U16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.high);
}
TANDEM_INLINE U16 SetU1(uint32_t x) {
  return {_mm256_set1_epi32(static_cast<int>(x)), _mm256_set1_epi32(static_cast<int>(x))};
}
TANDEM_INLINE U16 AddU(U16 a, U16 b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
TANDEM_INLINE U16 XorU(U16 a, U16 b) {
  return {_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}
TANDEM_INLINE U16 AndU(U16 a, U16 b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
template <int kBits>
TANDEM_INLINE U16 ShiftLeftU(U16 a) {
  return {_mm256_slli_epi32(a.low, kBits), _mm256_slli_epi32(a.high, kBits)};
}
template <int kBits>
TANDEM_INLINE U16 ShiftRightU(U16 a) {
  return {_mm256_srli_epi32(a.low, kBits), _mm256_srli_epi32(a.high, kBits)};
}
TANDEM_INLINE U16 SelectEqualU(U16 a, uint32_t value, U16 yes, U16 no) {
  __m256i wanted = _mm256_set1_epi32(static_cast<int>(value));
  return {_mm256_blendv_epi8(no.low, yes.low, _mm256_cmpeq_epi32(a.low, wanted)),
          _mm256_blendv_epi8(no.high, yes.high, _mm256_cmpeq_epi32(a.high, wanted))};
}
TANDEM_INLINE void MulWideHalf(__m256i a, __m256i factor, __m256i* low, __m256i* high) {
  __m256i even = _mm256_mul_epu32(a, factor);
  __m256i odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
  *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}
// The low and high words of the 64-bit products.
TANDEM_INLINE void MulWide(U16 a, uint32_t b, U16* low, U16* high) {
  __m256i factor = _mm256_set1_epi32(static_cast<int>(b));
  MulWideHalf(a.low, factor, &low->low, &high->low);
  MulWideHalf(a.high, factor, &low->high, &high->high);
}
TANDEM_INLINE U16 BitsOf(V16 a) {
  return {_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)};
}
TANDEM_INLINE V16 FromBits(U16 a) {
  return {_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)};
}
// The low byte of each lane.
TANDEM_INLINE void StoreBytes(uint8_t* p, U16 a) {
  const __m256i wanted = _mm256_set1_epi32(0xff);
  // Halves interleave as 0 1 2 3, 8 9 10 11, 4 5 6 7, 12 13 14 15.
  const __m256i words =
      _mm256_packus_epi32(_mm256_and_si256(a.low, wanted), _mm256_and_si256(a.high, wanted));
  const __m256i ordered = _mm256_permute4x64_epi64(words, 0xd8);
  _mm_storeu_si128(
      reinterpret_cast<__m128i*>(p),
      _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
}
// The low halves of each lane. REQUIRES: lanes below 2^16.
TANDEM_INLINE void StoreHalves(uint16_t* p, U16 a) {
  const __m256i mixed = _mm256_packus_epi32(a.low, a.high);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(mixed, 0xd8));
}
TANDEM_INLINE void StoreHalvesMasked(Mask16 mask, uint16_t* p, U16 a) {
  const int lanes = _mm256_movemask_ps(mask.low) | _mm256_movemask_ps(mask.high) << 8;
  alignas(32) uint16_t halves[16];
  StoreHalves(halves, a);
  for (int i = 0; i < 16; ++i) {
    if ((lanes >> i & 1) != 0) p[i] = halves[i];
  }
}
// 32 signed bytes as 16-bit halves of lanes.
TANDEM_INLINE U16 LoadInt8AsHalves(const uint8_t* p) {
  return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16)))};
}
// For integral values within int32.
TANDEM_INLINE U16 ToInt(V16 a) { return {_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)}; }
TANDEM_INLINE V16 FromInt(U16 a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }

// a·2^n for whole n, where the result is a normal number.
TANDEM_INLINE V16 Scale2(V16 a, V16 n) {
  return Mul(a, FromBits(ShiftLeftU<23>(AddU(ToInt(n), SetU1(127)))));
}

}  // namespace tandem::kernels::TANDEM_ISA
