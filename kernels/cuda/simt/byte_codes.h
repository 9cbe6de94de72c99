// The one-byte codes of int8 and fp8 caches and of fp8 weights: how a value becomes a code, and how
// codes become bf16 operands of matrix instructions. Every code is exact in bf16; the kernel that
// uses the product applies its scale in fp32. Thread safety: pure functions.
#pragma once

#include "kernels/api/kv_cache.h"
#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// The int8 code of a value that its head's factor scaled to ±127: to nearest even, two's
// complement.
TANDEM_DEVICE uint8_t ToInt8Code(float scaled) {
  return static_cast<uint8_t>(RoundToInt(Max(Min(scaled, 127.0f), -127.0f)));
}

// The e4m3 code of a value that its head's factor scaled to ±448: to nearest even, never NaN's
// code.
TANDEM_DEVICE uint8_t ToFp8Code(float scaled) {
  const uint32_t sign = FloatToBits(scaled) >> 24 & 0x80u;
  const float magnitude = Min(BitsToFloat(FloatToBits(scaled) & 0x7fffffffu), 448.0f);
  // Below 2^−6 codes are multiples of 2^−9.
  if (magnitude < 0x1p-6f) {
    return static_cast<uint8_t>(sign | static_cast<uint32_t>(RoundToInt(Mul(magnitude, 512.0f))));
  }
  const uint32_t bits = FloatToBits(magnitude);
  const uint32_t rounded = (bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20;
  return static_cast<uint8_t>(sign | (rounded - ((127 - 7) << 3)));
}

// Two codes as bf16. int8 codes lie in the low bytes of the halves of `bytes`, e4m3 codes in the
// high bytes.
TANDEM_DEVICE uint32_t WidenInt8Pair(uint32_t bytes) {
  // 128 + the low seven bits, less 128 or, for negative ones, 256.
  constexpr uint32_t kOne = 0x3f803f80u;
  return FmaBf16Pair(MaskOr(bytes, 0x007f007fu, 0x43004300u), kOne,
                     MaskOr(bytes, 0x00800080u, 0xc300c300u));
}
TANDEM_DEVICE uint32_t WidenFp8Pair(uint32_t bytes) {
  // With its exponent in bf16's place the number is 2^120 too small, for subnormals too.
  constexpr uint32_t kUnit = 0x7b807b80u, kMinusZero = 0x80008000u;
  return FmaBf16Pair((bytes & 0x80008000u) | (bytes >> 4 & 0x07f007f0u), kUnit, kMinusZero);
}

// Four codes (byte 0 lowest) as bf16: bytes 0 and 2 in `out[0]`, 1 and 3 in `out[1]`, the lower
// byte in the low half.
template <KvType kType>
TANDEM_DEVICE void WidenCodes(uint32_t codes, uint32_t out[2]) {
  if constexpr (kType == KvType::kInt8) {
    out[0] = WidenInt8Pair(codes);
    out[1] = WidenInt8Pair(codes >> 8);
  } else {
    out[0] = WidenFp8Pair(codes << 8);
    out[1] = WidenFp8Pair(codes);
  }
}

}  // namespace tandem::kernels::TANDEM_SIMT
