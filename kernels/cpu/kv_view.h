// Where the elements of a layer's cache lie, for elements of type T. Thread safety: a value; the
// region's own rules apply to what it points to (kernels/api/kv_cache.h). Owner: the engine owns
// the region; a view borrows it.
#pragma once

#include "kernels/api/kv_cache.h"
#include "kernels/api/require.h"
#include "kernels/cpu/gemm_dot.h"
#include "kernels/cpu/tile_registers.h"
#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

TANDEM_INLINE void RequireKvLayer(const KvLayer& layer) {
  KERNEL_REQUIRE(layer.shape.head_dim > 0 && layer.shape.head_dim <= 256);
  KERNEL_REQUIRE(layer.shape.head_dim % 16 == 0);
  KERNEL_REQUIRE(layer.shape.block_tokens >= 16 && layer.shape.block_tokens % 16 == 0);
  KERNEL_REQUIRE(256 % layer.shape.block_tokens == 0);
  KERNEL_REQUIRE(layer.shape.num_kv_heads > 0);
  KERNEL_REQUIRE(layer.shape.type != KvType::kFp8);
}

// Whether a bf16 cache keeps pairs (kv_cache.cc).
inline constexpr bool kKeepsPairs = kHasDotProducts || kHasTiles;

template <typename T>
struct KvView {
  char* base;
  int64_t block_stride;
  int64_t slab_elements;
  int32_t head_dim;
  int32_t block_tokens;

  TANDEM_INLINE explicit KvView(const KvLayer& layer)
      : base(static_cast<char*>(layer.base)),
        block_stride(layer.block_stride_bytes),
        slab_elements(static_cast<int64_t>(layer.shape.block_tokens) * layer.shape.head_dim),
        head_dim(layer.shape.head_dim),
        block_tokens(layer.shape.block_tokens) {}

  TANDEM_INLINE T* Slab(int32_t block, int32_t head, int32_t which) const {
    return reinterpret_cast<T*>(base + block * block_stride) + (head * 2 + which) * slab_elements;
  }
  // K of tokens [16·tile, 16·tile + 16) of a block: [head_dim][16].
  TANDEM_INLINE T* KeyTile(int32_t block, int32_t head, int32_t tile) const {
    return Slab(block, head, 0) + static_cast<int64_t>(tile) * head_dim * 16;
  }
  // V of a token of a block: [head_dim]. With pairs, the V of an even token is that of its pair:
  // [head_dim][2].
  TANDEM_INLINE T* Value(int32_t block, int32_t head, int32_t token) const {
    return Slab(block, head, 1) + static_cast<int64_t>(token) * head_dim;
  }
};

}  // namespace tandem::kernels::TANDEM_ISA
