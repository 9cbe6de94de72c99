// What plain attention (attention.cc) and attention as partials (attention_partials.cc) share: the
// query vectors of some rows, one partition's (m, l, o) for each of them, the merge of two, and the
// end of a row's softmax. Both operators are built of these and of nothing else, so they have the
// same bits. Thread safety: one worker of a call, with scratch of its own.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/gemm_dot.h"
#include "kernels/cpu/int8_cache.h"
#include "kernels/cpu/partition_pass.h"

namespace tandem::kernels::TANDEM_ISA {

TANDEM_INLINE int32_t RowBegin(const AttentionArgs& args, int32_t position) {
  if (args.sliding_window <= 0 || position + 1 <= args.sliding_window) return 0;
  return position + 1 - args.sliding_window;
}

// Query vectors of some rows of a sequence and one KV head; vector j is row j / heads_per_kv of
// them and head j % heads_per_kv of the KV head.
struct Vectors {
  const AttentionArgs* args;
  const SequenceRows* sequence;
  int32_t first_row;  // within the sequence
  int32_t num_rows;
  int32_t kv_head;
  int32_t heads_per_kv;
  int32_t table_partition = 0;  // the partition that the sequence's block table begins with

  TANDEM_INLINE int64_t count() const { return int64_t{num_rows} * heads_per_kv; }
  TANDEM_INLINE int64_t RowInSequence(int64_t j) const { return first_row + j / heads_per_kv; }
  TANDEM_INLINE int64_t Row(int64_t j) const { return sequence->first_row + RowInSequence(j); }
  TANDEM_INLINE int64_t Head(int64_t j) const {
    return int64_t{kv_head} * heads_per_kv + j % heads_per_kv;
  }
  TANDEM_INLINE int64_t HeadOffset(int64_t j) const { return Head(j) * args->layer.shape.head_dim; }
  TANDEM_INLINE int32_t Position(int64_t j) const {
    return sequence->first_position + static_cast<int32_t>(RowInSequence(j));
  }
};

// Whether this call uses bf16 dot products.
TANDEM_INLINE bool UsesDot(const AttentionArgs& args) {
  return kHasDotProducts && args.layer.shape.type == KvType::kBf16;
}
// Whether this call uses tile registers.
TANDEM_INLINE bool UsesTiles(const AttentionArgs& args) {
  return kHasTiles && args.layer.shape.type == KvType::kBf16;
}

// Of PlanAttention.
TANDEM_INLINE int64_t TaskVectors(const AttentionArgs& args) {
  return UsesTiles(args) ? kTileTaskVectors : kTaskVectors;
}

// The vectors divided into groups of nearly equal size.
TANDEM_INLINE int64_t NumGroups(const AttentionArgs& args, int64_t count) {
  const int64_t most = UsesTiles(args) ? kMaxGroupVectors : kMaxBlockRows;
  return (count + most - 1) / most;
}

struct PairsShape {
  int32_t head_dim;
  int64_t step;  // between pairs
};

// Rounds the pairs of one query vector, scaled with log2 e, and scatters them.
TANDEM_INLINE void PackPairs([[maybe_unused]] const float* q, [[maybe_unused]] float scale,
                             const PairsShape& shape, uint32_t* out) {
  alignas(64) uint32_t pairs[128] = {};
#if defined(__AVX512BF16__)
  const V16 factor = Set1(scale * kLog2E);
  for (int32_t d = 0; d < shape.head_dim; d += 16) {
    StoreBf16(reinterpret_cast<uint16_t*>(pairs) + d, Mul(Load(q + d), factor));
  }
#endif
  for (int32_t i = 0; i < shape.head_dim / 2; ++i) out[i * shape.step] = pairs[i];
}

// Rounds one query vector, scaled with log2 e, to a row of bf16, zeros behind it.
TANDEM_INLINE void PackRow([[maybe_unused]] const float* q, [[maybe_unused]] float scale,
                           [[maybe_unused]] int32_t head_dim, [[maybe_unused]] uint16_t* row) {
#if defined(TANDEM_TILE_CLASS)
  const V16 factor = Set1(scale * kLog2E);
  for (int32_t d = 0; d < PaddedHeadDim(head_dim); d += 16)
    StoreBf16(row + d, d < head_dim ? Mul(Load(q + d), factor) : Zero());
#endif
}

// Rounds one query vector, scaled, to int8 and scatters its quads, its scale and its correction.
TANDEM_INLINE void PackQuads(const float* q, float scale, const PairsShape& shape, uint32_t* out) {
  alignas(64) uint8_t bytes[256];
  const float q_scale = QuantiseHead(q, scale, shape.head_dim, bytes);
  int32_t sum = 0;
  for (int32_t d = 0; d < shape.head_dim; ++d) sum += static_cast<int8_t>(bytes[d]);
  const int32_t correction = -128 * sum;
  for (int32_t i = 0; i < shape.head_dim / 4; ++i, out += shape.step) {
    __builtin_memcpy(out, bytes + i * 4, 4);
  }
  __builtin_memcpy(out, &q_scale, 4);
  __builtin_memcpy(out + shape.step, &correction, 4);
}

// Copies the scaled q of every group as [head_dim][group size], or as bf16 pairs,
// [head_dim / 2][group size], or as bf16 rows, [group size][PaddedHeadDim], or as int8 (see
// RunPartitionGroupInt8).
inline void PackQueries(const Vectors& vectors, float* packed) {
  const AttentionArgs& args = *vectors.args;
  const int32_t head_dim = args.layer.shape.head_dim;
  const int64_t count = vectors.count(), groups = NumGroups(args, count);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = count * g / groups, size = count * (g + 1) / groups - begin;
    float* out = packed + begin * head_dim;
    for (int64_t r = 0; r < size; ++r) {
      const float* q =
          args.q + vectors.Row(begin + r) * args.q_stride + vectors.HeadOffset(begin + r);
      if (args.layer.shape.type == KvType::kInt8) {
        PackQuads(q, args.scale, {head_dim, size}, reinterpret_cast<uint32_t*>(out) + r);
      } else if (UsesTiles(args)) {
        PackRow(q, args.scale, head_dim,
                reinterpret_cast<uint16_t*>(out) + r * PaddedHeadDim(head_dim));
      } else if (!UsesDot(args)) {
        for (int32_t d = 0; d < head_dim; ++d) out[d * size + r] = q[d] * args.scale;
      } else {
        PackPairs(q, args.scale, {head_dim, size}, reinterpret_cast<uint32_t*>(out) + r);
      }
    }
  }
}

// Runs one partition with the pass for the call's cache type.
TANDEM_INLINE void RunPass(const PartitionGroup& group) {
  const KvType type = group.layer->shape.type;
  if (type == KvType::kInt8) {
    RunPartitionGroupInt8(group);
    return;
  }
#if defined(TANDEM_TILE_CLASS)
  if (type == KvType::kBf16) {
    RunPartitionGroupTile(group);
    return;
  }
#elif defined(__AVX512BF16__)
  if (type == KvType::kBf16) {
    RunPartitionGroupDot(group);
    return;
  }
#endif
  RunPartitionGroup(group);
}

// Runs all vectors through one partition. `sink(j, state)` gets each partial; vectors without a
// token in the partition are skipped.
template <typename Sink>
TANDEM_INLINE void RunPartition(const Vectors& vectors, const float* packed_q, int32_t partition,
                                KvStream* stream, const Sink& sink) {
  const AttentionArgs& args = *vectors.args;
  const int32_t head_dim = args.layer.shape.head_dim;
  const int32_t first_token = partition * kPartitionTokens;
  const int64_t count = vectors.count(), groups = NumGroups(args, count);
  alignas(64) float o[kMaxGroupVectors * 256];
  float m[kMaxGroupVectors], l[kMaxGroupVectors];
  PassTiles tiles;
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = count * g / groups;
    PartitionGroup group = {};
    group.size = static_cast<int32_t>(count * (g + 1) / groups - begin);
    group.q = packed_q + begin * head_dim;
    group.q_pairs = group.q;
    group.layer = &args.layer;
    group.block_table = vectors.sequence->block_table;
    group.kv_head = vectors.kv_head;
    group.first_token = (partition - vectors.table_partition) * kPartitionTokens;
    group.stream = stream;
    group.tiles = &tiles;
    for (int32_t r = 0; r < group.size; ++r) {
      const int32_t position = vectors.Position(begin + r);
      group.begin[r] = ClampToPartition(RowBegin(args, position) - first_token);
      group.end[r] = ClampToPartition(position + 1 - first_token);
    }
    group.m = m;
    group.l = l;
    group.o = o;
    RunPass(group);
    for (int32_t r = 0; r < group.size; ++r) {
      sink(begin + r, SoftmaxState{m + r, l + r, o + r * head_dim});
    }
  }
}

// Prefetches K and V of the tokens of a partition that any of the vectors attends to.
inline void FetchPartition(const Vectors& vectors, int32_t partition) {
  const AttentionArgs& args = *vectors.args;
  const KvShape& shape = args.layer.shape;
  const int32_t first = vectors.Position(0), base = partition * kPartitionTokens;
  const int32_t begin = ClampToPartition(RowBegin(args, first) - base) / 16 * 16;
  const int32_t end = ClampToPartition(first + vectors.num_rows - base);
  const int32_t in_table = (partition - vectors.table_partition) * kPartitionTokens;
  const int64_t slab_bytes = static_cast<int64_t>(KvSlabBytes(shape));
  const int64_t tile_bytes = slab_bytes / (shape.block_tokens / 16);
  for (int32_t token = in_table + begin; token < in_table + end; token += 16) {
    const int64_t block = vectors.sequence->block_table[token / shape.block_tokens];
    const char* key = static_cast<const char*>(args.layer.base) +
                      block * args.layer.block_stride_bytes + vectors.kv_head * 2 * slab_bytes +
                      token % shape.block_tokens / 16 * tile_bytes;
    for (int64_t i = 0; i < tile_bytes; i += 64) {
      _mm_prefetch(key + i, _MM_HINT_T1);
      _mm_prefetch(key + slab_bytes + i, _MM_HINT_T1);
    }
  }
}

// The merge and the end of a row's softmax, for the call's cache type.
TANDEM_INLINE void Merge(const AttentionArgs& args, const SoftmaxState& into,
                         const SoftmaxPart& part) {
#if defined(__AVX512BF16__) || defined(TANDEM_TILE_CLASS)
  if (UsesDot(args) || UsesTiles(args)) {
    MergeSoftmax<BinaryExponential>(into, part, args.layer.shape.head_dim);
    return;
  }
#endif
  MergeSoftmax<NaturalExponential>(into, part, args.layer.shape.head_dim);
}

// Writes o / l to element `at` of the output.
TANDEM_INLINE void Finish(const AttentionArgs& args, int64_t at, const SoftmaxPart& state) {
  if (args.out_bf16 != nullptr) {
    FinishSoftmax(state, args.layer.shape.head_dim,
                  [&](int32_t d, V16 value) { StoreBf16(args.out_bf16 + at + d, value); });
    return;
  }
  FinishSoftmax(state, args.layer.shape.head_dim,
                [&](int32_t d, V16 value) { Store(args.out + at + d, value); });
}
TANDEM_INLINE void Finish(const Vectors& vectors, int64_t j, const SoftmaxPart& state) {
  const AttentionArgs& args = *vectors.args;
  Finish(args, vectors.Row(j) * args.out_stride + vectors.HeadOffset(j), state);
}

}  // namespace tandem::kernels::TANDEM_ISA
