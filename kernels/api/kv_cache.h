// The paged KV cache as kernels see it, and the operator that fills it.
//
// One layer's region: [num_blocks][num_kv_heads][2][slab], K's slab before V's. A slab holds one
// head's `block_tokens` tokens in an element order that belongs to the backend
// (kernels/cpu/kv_cache.cc has those of the CPU classes). The write rounds K and V to the cache's
// type before any attention reads them.
//
// Thread safety: calls that write different (block, token) places may run at once; a write and
// attention over the same place may not. Owner: the engine owns the region; KvLayer borrows it.
// Errors: none; a broken REQUIRES ends the process (require.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/parallel.h"

namespace tandem::kernels {

// The element type of the cache. Rounding is to nearest even. kInt8 keeps each token's K and V of
// each head as integers of [-127, 127] and an fp32 scale, its largest magnitude / 127; attention's
// products with them are exact sums of integers, the same bits in every class. kFp8 keeps them as
// e4m3 with the same kind of scale, the largest magnitude / 448; on devices only.
enum class KvType { kF32, kBf16, kInt8, kFp8 };

// Types of one byte an element, with an fp32 scale for each token's K and V of each head.
constexpr bool HasKvScales(KvType type) { return type == KvType::kInt8 || type == KvType::kFp8; }
// The code that the largest magnitude of a head is scaled to.
constexpr float LargestKvCode(KvType type) { return type == KvType::kInt8 ? 127.0f : 448.0f; }
// Heads whose largest magnitude is not above this are stored as zeros with scale 0.
inline constexpr float kSmallestKvMagnitude = 1e-30f;

struct KvShape {
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;      // a multiple of 16, at most 256
  int32_t block_tokens = 0;  // a multiple of 16 that divides 256
  KvType type = KvType::kBf16;
};

// Bytes of one head's K (or V) of one block.
size_t KvSlabBytes(const KvShape& shape);
// Bytes of one block of one layer: num_kv_heads · 2 · slab.
size_t KvBlockBytes(const KvShape& shape);

// One layer's region. Borrows `base`; block b starts at base + b · block_stride_bytes.
struct KvLayer {
  KvShape shape;
  void* base = nullptr;            // 64-byte boundary
  int64_t block_stride_bytes = 0;  // ≥ KvBlockBytes(shape), a multiple of 64
};

// Consecutive rows of a batch that belong to one sequence and to consecutive positions.
struct SequenceRows {
  // The block of tokens [i·block_tokens, (i+1)·block_tokens) is block_table[i]. Entries of blocks
  // that no row may look at (before every row's window) are never read.
  const int32_t* block_table = nullptr;
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;  // absolute position of first_row
};

struct KvWriteArgs {
  const float* k = nullptr;  // [rows][k_stride], num_kv_heads · head_dim used
  int64_t k_stride = 0;
  const float* v = nullptr;  // [rows][v_stride]
  int64_t v_stride = 0;
  KvLayer layer;
  const SequenceRows* sequences = nullptr;  // [num_sequences]
  int32_t num_sequences = 0;
};
// REQUIRES: no two rows share a (block, token) place.
using KvWriteFn = void (*)(const KvWriteArgs& args, const ParallelFor& parallel);

// One token's K or V of one head, widened to fp32, out of a slab: for tests and tools.
struct KvReadArgs {
  KvLayer layer;
  int32_t block = 0;
  int32_t kv_head = 0;
  bool value = false;    // V instead of K
  int32_t token = 0;     // within the block
  float* out = nullptr;  // [head_dim]
};
using KvReadFn = void (*)(const KvReadArgs& args);

}  // namespace tandem::kernels
