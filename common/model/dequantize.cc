// Plain loops over blocks, written so that the compiler vectorises the inner ones (this file is
// compiled with -O3). Every product and sum is a single fp32 operation in ggml's order, and the
// project is built with -ffp-contract=off, so results equal ggml's to the bit.
#include "common/model/dequantize.h"

#include <cstring>
#include <limits>

#include "absl/base/casts.h"
#include "common/base/check.h"

namespace tandem::model {
namespace {

// ggml's super-block of the K formats.
constexpr int kSuperBlock = 256;
// Elements of a block of the older formats.
constexpr int kBlock = 32;

template <typename T>
T Load(const uint8_t* data) {
  T value;
  std::memcpy(&value, data, sizeof(T));
  return value;
}

float LoadHalf(const uint8_t* data) { return HalfToFloat(Load<uint16_t>(data)); }

void RowF32(const uint8_t* data, int64_t columns, float* out) {
  std::memcpy(out, data, static_cast<size_t>(columns) * sizeof(float));
}

void RowF16(const uint8_t* data, int64_t columns, float* out) {
  for (int64_t i = 0; i < columns; ++i) out[i] = LoadHalf(data + 2 * i);
}

void RowBf16(const uint8_t* data, int64_t columns, float* out) {
  for (int64_t i = 0; i < columns; ++i) {
    out[i] = absl::bit_cast<float>(static_cast<uint32_t>(Load<uint16_t>(data + 2 * i)) << 16);
  }
}

// Sign, four bits of exponent with a bias of 7, three of fraction.
constexpr float E4m3Value(uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int fraction = exponent == 0 ? code & 7 : 8 + (code & 7);
  float magnitude = static_cast<float>(fraction) * 0x1p-9f;
  for (int i = 1; i < exponent; ++i) magnitude *= 2.0f;
  if ((code & 0x7f) == 0x7f) magnitude = std::numeric_limits<float>::quiet_NaN();
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

struct E4m3Table {
  float values[256] = {};
  constexpr E4m3Table() {
    for (int code = 0; code < 256; ++code) values[code] = E4m3Value(static_cast<uint8_t>(code));
  }
};

// Elements without their scales.
void RowF8E4M3(const uint8_t* data, int64_t columns, float* out) {
  static constexpr E4m3Table kTable;
  for (int64_t i = 0; i < columns; ++i) out[i] = kTable.values[data[i]];
}

// d: half; 32 signed bytes.
void RowQ8_0(const uint8_t* data, int64_t columns, float* out) {
  for (int64_t begin = 0; begin < columns; begin += kBlock, data += 34, out += kBlock) {
    const float d = LoadHalf(data);
    const uint8_t* q = data + 2;
    for (int i = 0; i < kBlock; ++i) out[i] = static_cast<float>(static_cast<int8_t>(q[i])) * d;
  }
}

// d: half; 16 bytes whose low nibbles are elements 0..15 and high nibbles 16..31, offset by 8.
void RowQ4_0(const uint8_t* data, int64_t columns, float* out) {
  for (int64_t begin = 0; begin < columns; begin += kBlock, data += 18, out += kBlock) {
    const float d = LoadHalf(data);
    const uint8_t* q = data + 2;
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>((q[i] & 15) - 8);
    for (int i = 0; i < 16; ++i) out[16 + i] = d * static_cast<float>((q[i] >> 4) - 8);
  }
}

// d, m: halves; nibbles as in Q4_0, without an offset.
void RowQ4_1(const uint8_t* data, int64_t columns, float* out) {
  for (int64_t begin = 0; begin < columns; begin += kBlock, data += 20, out += kBlock) {
    const float d = LoadHalf(data);
    const float m = LoadHalf(data + 2);
    const uint8_t* q = data + 4;
    for (int i = 0; i < 16; ++i) out[i] = d * static_cast<float>(q[i] & 15) + m;
    for (int i = 0; i < 16; ++i) out[16 + i] = d * static_cast<float>(q[i] >> 4) + m;
  }
}

// The fifth bits of a Q5 block: bit i of `high` belongs to element i. `q5` gets 32 values 0..31.
void UnpackFiveBits(const uint8_t* low, uint32_t high, int32_t* q5) {
  for (uint32_t i = 0; i < 16; ++i) {
    q5[i] = (low[i] & 15) | static_cast<int32_t>(((high >> i) & 1) << 4);
  }
  for (uint32_t i = 0; i < 16; ++i) {
    q5[16 + i] = (low[i] >> 4) | static_cast<int32_t>(((high >> (i + 16)) & 1) << 4);
  }
}

// d: half; 32 high bits; 16 bytes of nibbles; offset by 16.
void RowQ5_0(const uint8_t* data, int64_t columns, float* out) {
  int32_t q5[kBlock];
  for (int64_t begin = 0; begin < columns; begin += kBlock, data += 22, out += kBlock) {
    const float d = LoadHalf(data);
    UnpackFiveBits(data + 6, Load<uint32_t>(data + 2), q5);
    for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(q5[i] - 16);
  }
}

// d, m: halves; 32 high bits; 16 bytes of nibbles.
void RowQ5_1(const uint8_t* data, int64_t columns, float* out) {
  int32_t q5[kBlock];
  for (int64_t begin = 0; begin < columns; begin += kBlock, data += 24, out += kBlock) {
    const float d = LoadHalf(data);
    const float m = LoadHalf(data + 2);
    UnpackFiveBits(data + 8, Load<uint32_t>(data + 4), q5);
    for (int i = 0; i < kBlock; ++i) out[i] = d * static_cast<float>(q5[i]) + m;
  }
}

struct ScaleAndMin {
  float scale;
  float min;
};

// Q4_K and Q5_K pack eight 6-bit scales and eight 6-bit minima into 12 bytes: bytes 0..3 and 4..7
// hold the first four of each in their low six bits; their top two bits and the nibbles of bytes
// 8..11 make up the last four.
ScaleAndMin UnpackScale(const uint8_t* packed, int index) {
  if (index < 4) {
    return {static_cast<float>(packed[index] & 63), static_cast<float>(packed[index + 4] & 63)};
  }
  const int low = packed[index + 4];
  const int scale = (low & 15) | ((packed[index - 4] >> 6) << 4);
  const int min = (low >> 4) | ((packed[index] >> 6) << 4);
  return {static_cast<float>(scale), static_cast<float>(min)};
}

// d, dmin: halves; 12 bytes of scales; 128 bytes: each run of 32 bytes holds 32 elements in its
// low nibbles and the next 32 in its high ones.
void RowQ4_K(const uint8_t* data, int64_t columns, float* out) {
  for (int64_t begin = 0; begin < columns; begin += kSuperBlock, data += 144) {
    const float d = LoadHalf(data);
    const float dmin = LoadHalf(data + 2);
    const uint8_t* q = data + 16;
    for (int sub = 0; sub < 8; ++sub, out += kBlock) {
      const ScaleAndMin packed = UnpackScale(data + 4, sub);
      const float scale = d * packed.scale;
      const float min = dmin * packed.min;
      const uint8_t* nibbles = q + 32 * (sub / 2);
      const int shift = 4 * (sub & 1);
      for (int i = 0; i < kBlock; ++i) {
        out[i] = scale * static_cast<float>((nibbles[i] >> shift) & 15) - min;
      }
    }
  }
}

// As Q4_K with 32 bytes of fifth bits before the nibbles: bit `sub` of byte i belongs to element i
// of sub-block `sub`.
void RowQ5_K(const uint8_t* data, int64_t columns, float* out) {
  for (int64_t begin = 0; begin < columns; begin += kSuperBlock, data += 176) {
    const float d = LoadHalf(data);
    const float dmin = LoadHalf(data + 2);
    const uint8_t* high = data + 16;
    const uint8_t* q = data + 48;
    for (int sub = 0; sub < 8; ++sub, out += kBlock) {
      const ScaleAndMin packed = UnpackScale(data + 4, sub);
      const float scale = d * packed.scale;
      const float min = dmin * packed.min;
      const uint8_t* nibbles = q + 32 * (sub / 2);
      const int shift = 4 * (sub & 1);
      for (int i = 0; i < kBlock; ++i) {
        const int value = ((nibbles[i] >> shift) & 15) | (((high[i] >> sub) & 1) << 4);
        out[i] = scale * static_cast<float>(value) - min;
      }
    }
  }
}

// 128 bytes of low nibbles, 64 bytes of high bit pairs, 16 signed scales, d: half. Two halves of
// 128 elements; in each, run r of 32 elements takes nibbles of bytes 32 * (r & 1) .. and bit pair
// r. Offset by 32; one scale per 16 elements.
void RowQ6_K(const uint8_t* data, int64_t columns, float* out) {
  for (int64_t begin = 0; begin < columns; begin += kSuperBlock, data += 210) {
    const uint8_t* scales = data + 192;
    const float d = LoadHalf(data + 208);
    for (int run = 0; run < 8; ++run, out += kBlock) {
      const uint8_t* low = data + 64 * (run / 4) + 32 * (run & 1);
      const uint8_t* high = data + 128 + 32 * (run / 4);
      const int low_shift = 4 * ((run & 3) / 2);
      const int high_shift = 2 * (run & 3);
      const float scale_0 = d * static_cast<float>(static_cast<int8_t>(scales[2 * run]));
      const float scale_1 = d * static_cast<float>(static_cast<int8_t>(scales[2 * run + 1]));
      for (int i = 0; i < kBlock; ++i) {
        const int value =
            (((low[i] >> low_shift) & 15) | (((high[i] >> high_shift) & 3) << 4)) - 32;
        out[i] = (i < 16 ? scale_0 : scale_1) * static_cast<float>(value);
      }
    }
  }
}

}  // namespace

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  // Subnormals are mantissa * 2^-24, exact as a product of normal floats, so flush-to-zero modes
  // cannot change them.
  const uint32_t subnormal = absl::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-24f);
  const uint32_t normal = (magnitude << 13) + (112u << 23);
  const uint32_t special = (magnitude << 13) | 0x7f800000u;
  const uint32_t finite = magnitude < 0x0400u ? subnormal : normal;
  return absl::bit_cast<float>(sign | (magnitude >= 0x7c00u ? special : finite));
}

const TensorTypeLayout& LayoutOf(TensorType type) {
  static constexpr TensorTypeLayout kLayouts[] = {
      {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},     {"Q8_0", 32, 34},
      {"Q4_0", 32, 18},   {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},
      {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210}, {"F8_E4M3", 1, 1},
  };
  const auto index = static_cast<size_t>(type);
  TANDEM_CHECK(index < std::size(kLayouts), "tensor type ", index);
  return kLayouts[index];
}

absl::string_view TensorTypeName(TensorType type) { return LayoutOf(type).name; }

std::optional<TensorType> TensorTypeFromGgml(uint32_t ggml_type) {
  switch (ggml_type) {
    case 0:
      return TensorType::kF32;
    case 1:
      return TensorType::kF16;
    case 2:
      return TensorType::kQ4_0;
    case 3:
      return TensorType::kQ4_1;
    case 6:
      return TensorType::kQ5_0;
    case 7:
      return TensorType::kQ5_1;
    case 8:
      return TensorType::kQ8_0;
    case 12:
      return TensorType::kQ4_K;
    case 13:
      return TensorType::kQ5_K;
    case 14:
      return TensorType::kQ6_K;
    case 30:
      return TensorType::kBF16;
    default:
      return std::nullopt;
  }
}

absl::string_view GgmlTypeName(uint32_t ggml_type) {
  // Numbers without a name were retired by ggml.
  static constexpr absl::string_view kNames[] = {
      "F32",   "F16",     "Q4_0",    "Q4_1",    "unknown", "unknown", "Q5_0",
      "Q5_1",  "Q8_0",    "Q8_1",    "Q2_K",    "Q3_K",    "Q4_K",    "Q5_K",
      "Q6_K",  "Q8_K",    "IQ2_XXS", "IQ2_XS",  "IQ3_XXS", "IQ1_S",   "IQ4_NL",
      "IQ3_S", "IQ2_S",   "IQ4_XS",  "I8",      "I16",     "I32",     "I64",
      "F64",   "IQ1_M",   "BF16",    "unknown", "unknown", "unknown", "TQ1_0",
      "TQ2_0", "unknown", "unknown", "unknown", "MXFP4",   "NVFP4",
  };
  return ggml_type < std::size(kNames) ? kNames[ggml_type] : "unknown";
}

void DequantizeRow(TensorType type, const std::byte* data, int64_t columns, float* out) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(data);
  switch (type) {
    case TensorType::kF32:
      return RowF32(bytes, columns, out);
    case TensorType::kF16:
      return RowF16(bytes, columns, out);
    case TensorType::kBF16:
      return RowBf16(bytes, columns, out);
    case TensorType::kQ8_0:
      return RowQ8_0(bytes, columns, out);
    case TensorType::kQ4_0:
      return RowQ4_0(bytes, columns, out);
    case TensorType::kQ4_1:
      return RowQ4_1(bytes, columns, out);
    case TensorType::kQ5_0:
      return RowQ5_0(bytes, columns, out);
    case TensorType::kQ5_1:
      return RowQ5_1(bytes, columns, out);
    case TensorType::kQ4_K:
      return RowQ4_K(bytes, columns, out);
    case TensorType::kQ5_K:
      return RowQ5_K(bytes, columns, out);
    case TensorType::kQ6_K:
      return RowQ6_K(bytes, columns, out);
    case TensorType::kF8E4M3:
      return RowF8E4M3(bytes, columns, out);
  }
}

Q4KBlock UnpackQ4K(const std::byte* stored) {
  const auto* data = reinterpret_cast<const uint8_t*>(stored);
  Q4KBlock block = {};
  block.d = Load<uint16_t>(data);
  block.dmin = Load<uint16_t>(data + 2);
  for (int sub = 0; sub < 8; ++sub) {
    const ScaleAndMin packed = UnpackScale(data + 4, sub);
    block.scales[sub] = static_cast<uint8_t>(packed.scale);
    block.mins[sub] = static_cast<uint8_t>(packed.min);
    const uint8_t* nibbles = data + 16 + 32 * (sub / 2);
    const int shift = 4 * (sub & 1);
    for (int i = 0; i < 16; ++i) {
      const int low = (nibbles[i] >> shift) & 15, high = (nibbles[16 + i] >> shift) & 15;
      block.elements[sub][i] = static_cast<uint8_t>(low | high << 4);
    }
  }
  return block;
}

uint16_t TimesMinusEight(uint16_t half) {
  constexpr uint32_t kMost = 0x7bff;
  const uint32_t sign = ~uint32_t{half} & 0x8000u;
  const uint32_t magnitude = half & 0x7fffu;
  uint32_t product = magnitude + (3u << 10);
  if (magnitude < 0x400) {  // subnormal: a multiple of 2^-24
    uint32_t multiple = magnitude << 3, doublings = 0;
    for (; multiple >> doublings >= 0x800; ++doublings) {
    }
    product = multiple < 0x400 ? multiple : (multiple >> doublings) + (doublings << 10);
  } else if (product > kMost) {
    product = kMost;
  }
  return static_cast<uint16_t>(sign | product);
}

}  // namespace tandem::model
