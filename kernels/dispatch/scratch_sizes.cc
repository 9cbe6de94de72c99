// Sizes of scratch areas and of cache blocks, which kernels/api/attention.h, kernels/api/gemm.h,
// kernels/api/kv_cache.h and kernels/api/sampling.h declare (AttentionScratchBytes and the like).
// Every instruction-set class uses the same sizes.
#include "kernels/api/attention.h"
#include "kernels/api/attention_partials.h"
#include "kernels/api/gemm.h"
#include "kernels/api/kv_cache.h"
#include "kernels/api/sampling.h"
#include "kernels/cpu/attention_plan.h"

namespace tandem::kernels {

size_t GemmScratchBytes(int64_t rows, int64_t k) {
  // fp32 rows; or bytes padded to whole groups of 64 and a line more, beside eight bytes for each
  // group of 32, on a cache line; or bf16 padded to whole groups of 32 and a line more.
  return static_cast<size_t>(RoundUpTo64(rows * (k * 4 + 144)) + 64);
}

size_t KvSlabBytes(const KvShape& shape) {
  if (HasKvScales(shape.type)) {
    return static_cast<size_t>(shape.block_tokens) * (static_cast<size_t>(shape.head_dim) + 4);
  }
  const size_t element = shape.type == KvType::kF32 ? 4 : 2;
  return element * static_cast<size_t>(shape.block_tokens) * static_cast<size_t>(shape.head_dim);
}

size_t KvBlockBytes(const KvShape& shape) {
  return KvSlabBytes(shape) * 2 * static_cast<size_t>(shape.num_kv_heads);
}

size_t AttentionScratchBytes(const AttentionLimits& limits) {
  const AttentionPlan plan = PlanAttention(limits.num_heads, limits.kv, limits.max_rows);
  int64_t bytes = plan.block_list_bytes + limits.num_workers * plan.worker_floats * 4;
  if (limits.num_workers > 1) {
    // Only calls with fewer (row block, KV head) tasks than this keep records of their partitions.
    const int64_t most_blocks = (kTasksPerWorker * limits.num_workers - 1) / limits.kv.num_kv_heads;
    const int64_t block_rows = most_blocks * plan.rows_per_block;
    const int64_t rows = block_rows < limits.max_rows ? block_rows : limits.max_rows;
    const int64_t partitions = limits.max_context_tokens / kPartitionTokens + 2;
    const int64_t row_bytes = limits.num_heads * partitions * plan.record_floats * 4;
    const int64_t most = row_bytes < kRecordsBytesMax ? kRecordsBytesMax : row_bytes;
    bytes += rows * row_bytes < most ? rows * row_bytes : most;
  }
  return static_cast<size_t>(RoundUpTo64(bytes));
}

size_t PartialsScratchBytes(const PartialsLimits& limits) {
  const AttentionPlan plan = PlanAttention(limits.num_heads, limits.kv, 0);
  return static_cast<size_t>(PartialsListBytes(limits.max_sequences) +
                             limits.num_workers * PartialsQueryFloats(plan, limits.kv) * 4);
}

size_t SamplingScratchBytes(int32_t vocab_size) {
  // A float and two 64-bit integers for each token of the padded vocabulary.
  const int64_t padded = (static_cast<int64_t>(vocab_size) + 15) / 16 * 16;
  return static_cast<size_t>(padded * (4 + 8 + 8));
}

}  // namespace tandem::kernels
