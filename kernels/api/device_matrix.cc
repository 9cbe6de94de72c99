#include "kernels/api/device_matrix.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/api/float_bits.h"
#include "kernels/api/int4_group.h"

namespace tandem::kernels {
namespace {

constexpr int32_t kGroup = static_cast<int32_t>(kInt4GroupSize);
constexpr float kE4m3Max = 448.0f;

// The place of element i of a group of 32: in lane (i / 2) % 4's words.
struct Place {
  int lane, half, eight, step;
  explicit Place(int32_t i) : lane(i / 2 % 4), half(i % 2), eight(i / 8 % 2), step(i / 16) {}

  int nibble() const { return 2 * step + eight + 4 * half; }  // of the lane's word
  // Which of the group's 32 elements.
  int byte() const { return lane * 8 + step * 4 + half * 2 + (eight == 0 ? 1 : 0); }
};

float LargestMagnitude(const float* row, int32_t k) {
  float most = 0;
  for (int32_t i = 0; i < k; ++i) most = std::max(most, std::fabs(row[i]));
  return most;
}

// The scale that maps magnitudes up to `most` onto [0, limit], and its inverse, computed as for the
// CPU's int8.
struct RowScale {
  float factor = 0, scale = 0;
  RowScale(float most, float limit) {
    if (!(most > 1e-30f)) return;
    factor = limit / most;
    scale = most / limit;
  }
};

void PackInt8(const DevicePackArgs& args) {
  const RowScale scale(LargestMagnitude(args.row, args.k), 127.0f);
  auto* out = static_cast<int8_t*>(args.values);
  for (int32_t i = 0; i < PaddedColumns(args.k); ++i) {
    const float rounded = i < args.k ? std::nearbyint(args.row[i] * scale.factor) : 0.0f;
    // NaN becomes a number, too.
    const float inside = rounded > -127.0f ? (rounded < 127.0f ? rounded : 127.0f) : -127.0f;
    out[i] = static_cast<int8_t>(inside);
  }
  std::memcpy(args.scales, &scale.scale, sizeof(float));
}

// The place of element i of a row of e4m3.
int32_t Fp8Place(DeviceWeightType type, int32_t i) {
  if (type == DeviceWeightType::kFp8Rows) return i;
  return i / kGroup * kGroup + Place(i % kGroup).byte();
}

void PackFp8(const DevicePackArgs& args) {
  const bool stored = args.codes != nullptr;
  const RowScale scale(stored ? 0.0f : LargestMagnitude(args.row, args.k), kE4m3Max);
  auto* out = static_cast<uint8_t*>(args.values);
  for (int32_t i = 0; i < PaddedColumns(args.k); ++i) {
    uint8_t value = 0;
    if (i < args.k) value = stored ? args.codes[i] : FloatToE4m3(args.row[i] * scale.factor);
    out[Fp8Place(args.type, i)] = value;
  }
  std::memcpy(args.scales, stored ? &args.code_scale : &scale.scale, sizeof(float));
}

void PackInt4(const DevicePackArgs& args) {
  auto* values = static_cast<char*>(args.values);
  auto* scales = static_cast<uint16_t*>(args.scales);
  for (int32_t g = 0; g < PaddedColumns(args.k) / kGroup; ++g, values += 16, scales += 2) {
    Int4Group group = {};  // beyond the row
    const int32_t begin = g * kGroup;
    if (begin < args.k) {
      group = args.groups != nullptr
                  ? FiniteInt4(args.groups[g])
                  : RoundToInt4(args.row + begin, std::min(kGroup, args.k - begin));
    }
    uint32_t words[4] = {};
    for (int32_t i = 0; i < kGroup; ++i) {
      const uint32_t q = i < 16 ? group.quants[i] & 15u : uint32_t{group.quants[i - 16]} >> 4;
      const Place place(i);
      words[place.lane] |= q << (4 * place.nibble());
    }
    std::memcpy(values, words, sizeof(words));
    scales[0] = group.scale;
    scales[1] = group.offset;
  }
}

float UnpackInt4(const DevicePackArgs& args, int32_t i) {
  const Place place(i % kGroup);
  uint32_t word = 0;
  std::memcpy(&word, static_cast<const char*>(args.values) + i / kGroup * 16 + place.lane * 4, 4);
  const auto* scale = static_cast<const uint16_t*>(args.scales) + i / kGroup * 2;
  const float q = static_cast<float>(word >> (4 * place.nibble()) & 15u);
  const uint32_t bits = uint32_t{FloatToBf16(HalfToFloat(scale[0]) * q + HalfToFloat(scale[1]))}
                        << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

const char* DeviceWeightTypeName(DeviceWeightType type) {
  switch (type) {
    case DeviceWeightType::kBf16:
      return "bf16";
    case DeviceWeightType::kInt8:
      return "int8";
    case DeviceWeightType::kInt4:
      return "int4";
    case DeviceWeightType::kFp8:
      return "fp8";
    case DeviceWeightType::kFp8Rows:
      return "fp8a8";
  }
  return "";
}

DeviceRowBytes RowBytesOf(DeviceWeightType type, int32_t k) {
  const size_t columns = static_cast<size_t>(PaddedColumns(k));
  switch (type) {
    case DeviceWeightType::kBf16:
      return {static_cast<size_t>(k) * sizeof(Bf16Bits), 0};
    case DeviceWeightType::kInt8:
    case DeviceWeightType::kFp8:
    case DeviceWeightType::kFp8Rows:
      return {columns, sizeof(float)};
    case DeviceWeightType::kInt4:
      return {columns / 2, columns / static_cast<size_t>(kGroup) * 4};
  }
  return {};
}

void PackDeviceRow(const DevicePackArgs& args) {
  switch (args.type) {
    case DeviceWeightType::kBf16:
      std::transform(args.row, args.row + args.k, static_cast<Bf16Bits*>(args.values), FloatToBf16);
      return;
    case DeviceWeightType::kInt8:
      return PackInt8(args);
    case DeviceWeightType::kInt4:
      return PackInt4(args);
    case DeviceWeightType::kFp8:
    case DeviceWeightType::kFp8Rows:
      return PackFp8(args);
  }
}

void GroupsOf(const Q4KBlock& block, Int4Group groups[8]) {
  const Q4KBlock finite = FiniteQ4K(block);
  for (int64_t g = 0; g < 8; ++g) {
    const Int4Factors factors = Q4KFactors(finite, g);
    groups[g].scale = FloatToHalf(factors.scale);
    groups[g].offset = FloatToHalf(factors.offset);
    std::memcpy(groups[g].quants, finite.quants[g], sizeof(groups[g].quants));
  }
}

void UnpackDeviceRow(const DevicePackArgs& args, float* row) {
  float scale = 0;
  if (args.scales != nullptr) std::memcpy(&scale, args.scales, sizeof(scale));
  for (int32_t i = 0; i < args.k; ++i) {
    if (args.type == DeviceWeightType::kBf16) {
      const uint32_t bits = uint32_t{static_cast<const Bf16Bits*>(args.values)[i]} << 16;
      std::memcpy(row + i, &bits, sizeof(bits));
    } else if (args.type == DeviceWeightType::kInt8) {
      row[i] = scale * static_cast<float>(static_cast<const int8_t*>(args.values)[i]);
    } else if (args.type == DeviceWeightType::kInt4) {
      row[i] = UnpackInt4(args, i);
    } else {
      const int32_t at = Fp8Place(args.type, i);
      row[i] = scale * E4m3ToFloat(static_cast<const uint8_t*>(args.values)[at]);
    }
  }
}

uint8_t FloatToE4m3(float value) {
  const uint32_t sign = FloatBits(value) >> 24 & 0x80u;
  const float magnitude = std::fabs(value);
  if (!(magnitude < kE4m3Max)) return static_cast<uint8_t>(sign | 0x7eu);
  if (magnitude < 0x1p-6f) {  // subnormal: a multiple of 2^-9
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(std::nearbyint(magnitude * 0x1p9f)));
  }
  const uint32_t bits = FloatBits(magnitude);
  const uint32_t rounded = bits + 0x7ffffu + (bits >> 20 & 1u);
  return static_cast<uint8_t>(sign | ((rounded >> 20) - (120u << 3)));
}

float E4m3ToFloat(uint8_t bits) {
  const int exponent = bits >> 3 & 15, fraction = bits & 7;
  const float magnitude =
      exponent == 0 ? static_cast<float>(fraction) * 0x1p-9f
                    : std::ldexp(1.0f + static_cast<float>(fraction) / 8.0f, exponent - 7);
  return (bits & 0x80u) != 0 ? -magnitude : magnitude;
}

Bf16Bits FloatToBf16(float value) {
  const uint32_t bits = FloatBits(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
  return static_cast<Bf16Bits>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace tandem::kernels
