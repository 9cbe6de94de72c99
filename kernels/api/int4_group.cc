#include "kernels/api/int4_group.h"

#include <cmath>
#include <cstring>

#include "kernels/api/float_bits.h"

namespace tandem::kernels {
namespace {

constexpr float kHalfMax = 65504.0f;

uint16_t FiniteHalf(uint16_t half) {
  return (half & 0x7c00) == 0x7c00 ? static_cast<uint16_t>((half & 0x8000) | 0x7bff) : half;
}

float QuantOf(const uint8_t (&quants)[16], int64_t i) {
  return static_cast<float>(i < 16 ? quants[i] & 15 : quants[i - 16] >> 4);
}

// NaN, too, becomes some value of [-65504, 65504].
float Inside(float value) {
  return value > -kHalfMax ? (value < kHalfMax ? value : kHalfMax) : -kHalfMax;
}

}  // namespace

float HalfToFloat(uint16_t half) {
  if ((half & 0x7c00) == 0x7c00) {  // infinite or NaN
    const uint32_t bits = (half & 0x8000u) << 16 | 0x7f800000u | (half & 0x3ffu) << 13;
    float value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
  // The exponent's bias differs by 112. The product is exact, so subnormals are correct too.
  const uint32_t bits = (half & 0x7fffu) << 13;
  float magnitude = 0;
  std::memcpy(&magnitude, &bits, sizeof(magnitude));
  magnitude *= 0x1p112f;
  return (half & 0x8000) != 0 ? -magnitude : magnitude;
}

uint16_t FloatToHalf(float value) {
  const uint32_t sign = FloatBits(value) >> 16 & 0x8000u;
  const float magnitude = std::fabs(Inside(value));
  if (magnitude < 0x1p-14f) {  // subnormal: a multiple of 2^-24
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p24f)));
  }
  const uint32_t bits = FloatBits(magnitude);
  const uint32_t rounded = bits + 0xfffu + (bits >> 13 & 1u);
  const uint32_t half = (rounded >> 13) - (112u << 10);
  return static_cast<uint16_t>(sign | (half < 0x7bffu ? half : 0x7bffu));
}

Int4Group RoundToInt4(const float* weights, int64_t count) {
  float least = Inside(weights[0]), most = least;
  for (int64_t i = 1; i < count; ++i) {
    const float value = Inside(weights[i]);
    least = value < least ? value : least;
    most = value > most ? value : most;
  }
  Int4Group group = {};
  group.offset = FloatToHalf(least);
  group.scale = FloatToHalf((most - least) / 15.0f);
  const float offset = HalfToFloat(group.offset), scale = HalfToFloat(group.scale);
  const float factor = scale > 0 ? 1.0f / scale : 0.0f;
  for (int64_t i = 0; i < count; ++i) {
    const float steps = (Inside(weights[i]) - offset) * factor + 0.5f;
    const float inside = steps > 0.0f ? (steps < 15.0f ? steps : 15.0f) : 0.0f;
    const int q = static_cast<int>(inside);
    group.quants[i % 16] = static_cast<uint8_t>(group.quants[i % 16] | (i < 16 ? q : q << 4));
  }
  return group;
}

float Int4Value(const Int4Group& group, int64_t i) {
  return HalfToFloat(group.scale) * QuantOf(group.quants, i) + HalfToFloat(group.offset);
}

Int4Group FiniteInt4(const Int4Group& group) {
  Int4Group finite = group;
  finite.scale = FiniteHalf(group.scale);
  finite.offset = FiniteHalf(group.offset);
  return finite;
}

Int4Factors Q4KFactors(const Q4KBlock& block, int64_t g) {
  return {HalfToFloat(block.scale) * static_cast<float>(block.scales[g]),
          -(HalfToFloat(block.min) * static_cast<float>(block.mins[g]))};
}

float Q4KValue(const Q4KBlock& block, int64_t g, int64_t i) {
  const Int4Factors factors = Q4KFactors(block, g);
  return factors.scale * QuantOf(block.quants[g], i) + factors.offset;
}

Q4KBlock FiniteQ4K(const Q4KBlock& block) {
  Q4KBlock finite = block;
  finite.scale = FiniteHalf(block.scale);
  finite.min = FiniteHalf(block.min);
  return finite;
}

}  // namespace tandem::kernels
