// The inner body of attention: a block of query vectors against one partition of 256 tokens.
// Thread safety: one worker of a call, with scratch of its own.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/cpu/dot.h"
#include "kernels/cpu/fma_block.h"
#include "kernels/cpu/kv_stream.h"
#include "kernels/cpu/kv_view.h"
#include "kernels/cpu/softmax_merge.h"
#include "kernels/cpu/tile_registers.h"

namespace tandem::kernels::TANDEM_ISA {

// The most vectors of a group: those of a register block, or the rows of two tiles.
inline constexpr int kMaxGroupVectors = kHasTiles ? 32 : kMaxBlockRows;

// A worker's tiles while it runs groups through a partition. Empty in classes without.
struct PassTiles {
#if defined(TANDEM_TILE_CLASS)
  TileRegisters registers;
  int32_t rows = 0;  // what they are configured for
#endif
};

// Elements of a row of q that RunPartitionGroupTile reads: head_dim, and zeros to whole steps.
TANDEM_INLINE int32_t PaddedHeadDim(int32_t head_dim) { return (head_dim + 31) / 32 * 32; }

// Up to kMaxBlockRows query vectors of one sequence and KV head, or kMaxGroupVectors on tiles, and
// what one partition gives them.
struct PartitionGroup {
  int32_t size;
  const float* q;  // [head_dim][size], scaled
  const void*
      q_pairs;  // or bf16 pairs [head_dim / 2][size], scaled with log2 e: RunPartitionGroupDot;
                // or bf16 rows [size][PaddedHeadDim], scaled with log2 e: RunPartitionGroupTile
  const KvLayer* layer;
  const int32_t* block_table;
  int32_t kv_head;
  int32_t first_token;              // of the partition
  int32_t begin[kMaxGroupVectors];  // tokens [begin, end) of the partition each vector attends to
  int32_t end[kMaxGroupVectors];
  KvStream* stream;  // what to fetch meanwhile, or nullptr. REQUIRES: size <= kStreamingRows
  PassTiles* tiles;  // RunPartitionGroupTile's
  float* m;  // [size] results; l = 0 for a vector whose range is empty, its m and o then undefined
  float* l;  // [size]
  float* o;  // [size][head_dim]
};

TANDEM_INLINE int32_t ClampToPartition(int32_t token) {
  return token < 0 ? 0 : (token > kPartitionTokens ? kPartitionTokens : token);
}

// The tokens of the partition that any vector of a group attends to, and those that all do.
struct AttendedTokens {
  int32_t any_begin = kPartitionTokens, any_end = 0, all_begin = 0, all_end = kPartitionTokens;
};

// Also sets l of every vector to 0.
TANDEM_INLINE AttendedTokens BeginGroup(const PartitionGroup& group, int32_t size) {
  AttendedTokens t;
  for (int32_t r = 0; r < size; ++r) {
    const int32_t begin = group.begin[r], end = group.end[r];
    group.l[r] = 0;
    t.all_begin = begin > t.all_begin ? begin : t.all_begin;
    t.all_end = end < t.all_end ? end : t.all_end;
    if (begin >= end) continue;
    t.any_begin = begin < t.any_begin ? begin : t.any_begin;
    t.any_end = end > t.any_end ? end : t.any_end;
  }
  return t;
}

void RunPartitionGroup(const PartitionGroup& group);
// For a bf16 cache in classes with dot products. m is then a base-2 logarithm.
void RunPartitionGroupDot(const PartitionGroup& group);
// For a bf16 cache in classes with tile registers. m is then a base-2 logarithm.
void RunPartitionGroupTile(const PartitionGroup& group);
// For an int8 cache. q_pairs is then quads of signed bytes, [head_dim / 4][size], scaled and
// rounded, then a scale and −128 times the sum of the bytes for each vector.
void RunPartitionGroupInt8(const PartitionGroup& group);

// Groups this small occur in generation, which memory bounds, so they prefetch K and V.
inline constexpr int kStreamingRows = 8;

// Prefetches some K or V that the worker will read soon.
TANDEM_INLINE void Prefetch(const void* data, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) {
    _mm_prefetch(static_cast<const char*>(data) + i, _MM_HINT_T0);
  }
}
// The memory that a group prefetches while it reads `bytes` bytes at `own`.
TANDEM_INLINE const char* Ahead(const PartitionGroup& group, const void* own, int64_t bytes) {
  const char* next = group.stream == nullptr ? nullptr : group.stream->Next(bytes);
  return next == nullptr ? static_cast<const char*>(own) : next;
}

}  // namespace tandem::kernels::TANDEM_ISA
