// The cache with both slabs as [block_tokens][head_dim].
#include "kernels/api/require.h"
#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {
namespace {

// Byte address of element 0 of a token's K or V.
char* Address(const KvLayer& layer, const KvReadArgs& place) {
  const size_t element = layer.shape.type == KvType::kF32 ? 4 : 2;
  const size_t slab = KvSlabBytes(layer.shape);
  return static_cast<char*>(layer.base) + place.block * layer.block_stride_bytes +
         (static_cast<size_t>(place.kv_head) * 2 + (place.value ? 1 : 0)) * slab +
         static_cast<size_t>(place.token) * static_cast<size_t>(layer.shape.head_dim) * element;
}

void WriteVector(const KvLayer& layer, const KvReadArgs& place, const float* values) {
  char* out = Address(layer, place);
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
  for (int32_t d = 0; d < args.layer.shape.head_dim; ++d) {
    args.out[d] = args.layer.shape.type == KvType::kF32
                      ? reinterpret_cast<const float*>(in)[d]
                      : FromBf16(reinterpret_cast<const uint16_t*>(in)[d]);
  }
}

}  // namespace tandem::kernels::ref
