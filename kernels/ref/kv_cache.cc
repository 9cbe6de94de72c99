// The cache (kernels/api/kv_cache.h) with both slabs as [block_tokens][head_dim]; int8 has each
// token's scale before it.
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

// In [-127, 127]. NaN, which has no int8, becomes -127.
int8_t RoundToInt8(float scaled) {
  const float rounded = std::nearbyint(scaled);
  return static_cast<int8_t>(rounded > -127.0f ? std::min(rounded, 127.0f) : -127.0f);
}

void WriteInt8(const float* values, int32_t size, char* out) {
  float most = 0;
  for (int32_t d = 0; d < size; ++d) most = std::max(most, std::fabs(values[d]));
  const float scale = most / 127.0f, factor = most > 1e-30f ? 127.0f / most : 0.0f;
  std::memcpy(out, &scale, sizeof(scale));
  for (int32_t d = 0; d < size; ++d) {
    reinterpret_cast<int8_t*>(out)[4 + d] = RoundToInt8(values[d] * factor);
  }
}

void WriteVector(const KvLayer& layer, const KvReadArgs& place, const float* values) {
  char* out = Address(layer, place);
  if (layer.shape.type == KvType::kInt8) {
    WriteInt8(values, layer.shape.head_dim, out);
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
  KERNEL_REQUIRE(shape.type != KvType::kFp8);
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
  KERNEL_REQUIRE(args.layer.shape.type != KvType::kFp8);
  const char* in = Address(args.layer, args);
  if (args.layer.shape.type == KvType::kInt8) {
    float scale = 0;
    std::memcpy(&scale, in, sizeof(scale));
    for (int32_t d = 0; d < args.layer.shape.head_dim; ++d) {
      args.out[d] = static_cast<float>(reinterpret_cast<const int8_t*>(in)[4 + d]) * scale;
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
