// An int8 or fp8 cache as the tests see it: codes and scales of one head of one token, written and
// read by formulas that are independent of the kernels'. Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "kernels/api/kv_cache.h"

namespace tandem::kernels {

// The value of a code, in double: int8's two's complement, or e4m3 (1.mmm · 2^(e − 7); without the
// leading one where e is 0).
inline double CodeValue(KvType type, uint8_t code) {
  if (type == KvType::kInt8) return static_cast<int8_t>(code);
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

// The code nearest to `x`, the even one of two; e4m3 without NaN's.
inline uint8_t NearestCode(KvType type, double x) {
  int best = 0;
  for (int code = 0; code < 256; ++code) {
    if (type == KvType::kFp8 && (code & 0x7f) == 0x7f) continue;
    if (type == KvType::kFp8 && (code & 0x80) != (std::signbit(x) ? 0x80 : 0)) continue;
    if (type == KvType::kInt8 && code == 0x80) continue;
    const bool first = type == KvType::kFp8 && (best & 0x80) != (code & 0x80);
    const double error = std::abs(CodeValue(type, static_cast<uint8_t>(code)) - x);
    const double least = std::abs(CodeValue(type, static_cast<uint8_t>(best)) - x);
    if (first || error < least || (error == least && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(best);
}

// One head's K or V of one token as stored.
struct StoredHead {
  std::vector<uint8_t> codes;  // [head_dim]
  float scale = 0;
  double Value(KvType type, size_t i) const { return CodeValue(type, codes[i]) * double{scale}; }
};

inline StoredHead StoreHead(KvType type, const float* x, size_t head_dim) {
  float most = 0;
  for (size_t i = 0; i < head_dim; ++i) most = std::max(most, std::abs(x[i]));
  StoredHead stored;
  stored.scale = most / LargestKvCode(type);
  for (size_t i = 0; i < head_dim; ++i) {
    stored.codes.push_back(NearestCode(type, double{x[i]} / stored.scale));
  }
  return stored;
}

// Where a token's codes and scale lie in a slab of a device: tiles of 16 tokens.
inline size_t CodesOffset(const KvShape& shape, int32_t token) {
  return static_cast<size_t>(token / 16 * 16 * (shape.head_dim + 4) + token % 16 * shape.head_dim);
}
inline size_t ScaleOffset(const KvShape& shape, int32_t token) {
  return static_cast<size_t>(token / 16 * 16 * (shape.head_dim + 4) + 16 * shape.head_dim +
                             token % 16 * 4);
}

}  // namespace tandem::kernels
