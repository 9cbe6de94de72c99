// Where the elements of an int8 cache lie, and how the cache write rounds rows.
//
// A slab is tiles of 16 tokens, each 16·head_dim bytes and an fp32 scale for each token:
//   K  [head_dim / 4][16 tokens][4] unsigned, q + 128, so that a register holds four dimensions of
//      16 tokens;
//   V  [8 pairs of tokens][head_dim][2] signed.
// A token's bytes and scale depend on that token alone. Thread safety: pure functions.
#pragma once

#include "kernels/cpu/int8_dot.h"
#include "kernels/cpu/kv_view.h"

namespace tandem::kernels::TANDEM_ISA {

struct Int8Tile {
  uint8_t* bytes;
  float* scales;  // [16]
};

struct Int8View {
  char* base;
  int64_t block_stride;
  int64_t tile_bytes;
  int32_t head_dim;
  int32_t block_tokens;

  TANDEM_INLINE explicit Int8View(const KvLayer& layer)
      : base(static_cast<char*>(layer.base)),
        block_stride(layer.block_stride_bytes),
        tile_bytes(16 * layer.shape.head_dim + 16 * static_cast<int64_t>(sizeof(float))),
        head_dim(layer.shape.head_dim),
        block_tokens(layer.shape.block_tokens) {}

  // Tokens [16·tile, 16·tile + 16) of a block; `which` is 0 for K, 1 for V.
  TANDEM_INLINE Int8Tile Tile(int32_t block, int32_t head, int32_t which, int32_t tile) const {
    const int64_t slab = block_tokens / 16 * tile_bytes;
    char* at = base + block * block_stride + (head * 2 + which) * slab + tile * tile_bytes;
    return {reinterpret_cast<uint8_t*>(at), reinterpret_cast<float*>(at + 16 * head_dim)};
  }
  TANDEM_INLINE int64_t KeyOffset(int32_t token, int32_t d) const {
    return d / 4 * 64 + token % 16 * 4 + d % 4;
  }
  TANDEM_INLINE int64_t ValueOffset(int32_t token, int32_t d) const {
    return (token % 16 / 2 * head_dim + d) * 2 + token % 2;
  }
};

// Rounds `head_dim` values times `factor` by their largest magnitude into low bytes, two's
// complement; returns the scale of what results.
TANDEM_INLINE float QuantiseHead(const float* x, float factor, int32_t head_dim, uint8_t* bytes) {
  V16 most = Zero();
  for (int32_t d = 0; d < head_dim; d += 16) {
    most = Max(most, Magnitude(Mul(Load(x + d), Set1(factor))));
  }
  const Int8Scale found = ScaleFor(ReduceMax(most));
  for (int32_t d = 0; d < head_dim; d += 16) {
    const V16 scaled = Mul(Mul(Load(x + d), Set1(factor)), Set1(found.factor));
    StoreBytes(bytes + d, ToInt(RoundToInt8(scaled)));
  }
  return found.scale;
}

}  // namespace tandem::kernels::TANDEM_ISA
