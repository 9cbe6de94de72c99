// The cache with both slabs as [block_tokens][head_dim]; int8 and fp8 have each token's scale
// before it.
#include <algorithm>
#include <cmath>

#include "kernels/api/require.h"
#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {
namespace {

// Byte address of element 0 of a token's K or V.
char* Address(const KvLayer& layer, const KvReadArgs& place) {
  const size_t slab = KvSlabBytes(layer.shape);
  const size_t token_bytes = slab / static_cast<size_t>(layer.shape.block_tokens);
  return static_cast<char*>(layer.base) + place.block * layer.block_stride_bytes +
         (static_cast<size_t>(place.kv_head) * 2 + (place.value ? 1 : 0)) * slab +
         static_cast<size_t>(place.token) * token_bytes;
}

// The value of an e4m3 code: 1.mmm · 2^(e − 7), or 0.mmm · 2^−6 where e is 0.
float FromE4m3(uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1 + mantissa / 8.0, exponent - 7);
  return static_cast<float>(code & 0x80 ? -magnitude : magnitude);
}

// The nearest code by trying all; of two as near, the even one. Never NaN's (0x7f).
uint8_t ToE4m3(float x) {
  uint8_t best = 0;
  const double magnitude = std::fabs(static_cast<double>(x));
  for (uint8_t code = 1; code < 0x7f; ++code) {
    const double worse = std::fabs(FromE4m3(best) - magnitude);
    const double error = std::fabs(FromE4m3(code) - magnitude);
    if (error < worse || (error == worse && code % 2 == 0)) best = code;
  }
  return static_cast<uint8_t>(std::signbit(x) ? best | 0x80 : best);
}

uint8_t ToCode(KvType type, float scaled) {
  if (type == KvType::kFp8) return ToE4m3(scaled);
  return static_cast<uint8_t>(static_cast<int8_t>(std::nearbyint(scaled)));
}
float FromCode(KvType type, uint8_t code) {
  return type == KvType::kFp8 ? FromE4m3(code) : static_cast<float>(static_cast<int8_t>(code));
}

void WriteScaled(const KvShape& shape, const float* values, char* out) {
  const float largest = LargestKvCode(shape.type);
  float most = 0;
  for (int32_t d = 0; d < shape.head_dim; ++d) most = std::max(most, std::fabs(values[d]));
  const float scale = most / largest, factor = most > kSmallestKvMagnitude ? largest / most : 0.0f;
  std::memcpy(out, &scale, sizeof(scale));
  for (int32_t d = 0; d < shape.head_dim; ++d) {
    reinterpret_cast<uint8_t*>(out)[4 + d] = ToCode(shape.type, values[d] * factor);
  }
}

void WriteVector(const KvLayer& layer, const KvReadArgs& place, const float* values) {
  char* out = Address(layer, place);
  if (HasKvScales(layer.shape.type)) {
    WriteScaled(layer.shape, values, out);
    return;
  }
  for (int32_t d = 0; d < layer.shape.head_dim; ++d) {
    if (layer.shape.type == KvType::kF32) {
      reinterpret_cast<float*>(out)[d] = values[d];
    } else {
      reinterpret_cast<uint16_t*>(out)[d] = ToBf16(values[d]);
    }
  }
}

}  // namespace

void KvWrite(const KvWriteArgs& args, const ParallelFor&) {
  const KvShape& shape = args.layer.shape;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    const SequenceRows& sequence = args.sequences[s];
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t position = sequence.first_position + i;
      const int64_t row = sequence.first_row + i;
      for (int32_t head = 0; head < shape.num_kv_heads; ++head) {
        KvReadArgs place;
        place.block = sequence.block_table[position / shape.block_tokens];
        place.kv_head = head;
        place.token = position % shape.block_tokens;
        WriteVector(args.layer, place, args.k + row * args.k_stride + head * shape.head_dim);
        place.value = true;
        WriteVector(args.layer, place, args.v + row * args.v_stride + head * shape.head_dim);
      }
    }
  }
}

void KvRead(const KvReadArgs& args) {
  const char* in = Address(args.layer, args);
  if (HasKvScales(args.layer.shape.type)) {
    float scale = 0;
    std::memcpy(&scale, in, sizeof(scale));
    for (int32_t d = 0; d < args.layer.shape.head_dim; ++d) {
      args.out[d] =
          FromCode(args.layer.shape.type, reinterpret_cast<const uint8_t*>(in)[4 + d]) * scale;
    }
    return;
  }
  for (int32_t d = 0; d < args.layer.shape.head_dim; ++d) {
    args.out[d] = args.layer.shape.type == KvType::kF32
                      ? reinterpret_cast<const float*>(in)[d]
                      : FromBf16(reinterpret_cast<const uint16_t*>(in)[d]);
  }
}

}  // namespace tandem::kernels::ref
