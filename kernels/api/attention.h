// Causal grouped-query attention over the paged cache: ONE operator for prompt and generated rows.
//
// A row at position t attends to positions (t − sliding_window, t], or to all of [0, t] without a
// window.
// Numerics: the reduction runs over absolute partitions of 256 tokens. For each (row, head,
// partition): scores in fp32 (head_dim ascending, q scaled first), m = max, p = exp(s − m), l = Σ p
// in 16 lanes and a fixed tree, o = Σ p·v with tokens ascending. Tokens outside the row's range
// take no part. One merge function folds partials in two levels: the 16 partitions of a group
// (4,096 tokens, absolute as well) in ascending order, then groups in ascending order. So a row has
// the same bits as a prompt row and as a generated one, wherever the prompt was cut, wherever its
// blocks lie, and whatever block size is used. attention_partials.h computes the two steps apart.
//
// Thread safety: the calling thread and the threads of `parallel`; calls that write different
// outputs and scratch may run at once. Owner: the caller owns all memory. Errors: none; a broken
// REQUIRES ends the process (require.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/kv_cache.h"
#include "kernels/api/parallel.h"

namespace tandem::kernels {

inline constexpr int32_t kPartitionTokens = 256;
inline constexpr int32_t kGroupPartitions = 16;
// The partition with which the group of `partition` ends, exclusive.
constexpr int32_t EndOfGroup(int32_t partition) {
  return (partition / kGroupPartitions + 1) * kGroupPartitions;
}

struct AttentionArgs {
  const float* q = nullptr;  // [rows][q_stride], num_heads · head_dim used
  int64_t q_stride = 0;
  // A multiple of num_kv_heads. Head h reads KV head h / (heads per KV head).
  int32_t num_heads = 0;
  float scale = 0;                          // multiplies q·k
  int32_t sliding_window = 0;               // tokens a row may look back, itself included; 0 = all
  KvLayer layer;                            // K and V of these rows are already written
  const SequenceRows* sequences = nullptr;  // [num_sequences]
  int32_t num_sequences = 0;
  float* out = nullptr;  // [rows][out_stride], num_heads · head_dim written
  int64_t out_stride = 0;
  uint16_t* out_bf16 = nullptr;  // instead of `out`, rounded to nearest even
  void* scratch = nullptr;       // [AttentionScratchBytes(...)], 64-byte boundary
  size_t scratch_bytes = 0;
};
using AttentionFn = void (*)(const AttentionArgs& args, const ParallelFor& parallel);

// The largest call a scratch area must serve.
struct AttentionLimits {
  int32_t num_heads = 0;
  KvShape kv;
  int32_t max_rows = 0;
  int32_t max_context_tokens = 0;  // highest position + 1
  int32_t num_workers = 1;
};
size_t AttentionScratchBytes(const AttentionLimits& limits);

}  // namespace tandem::kernels
