// How attention divides its work into tasks. The kernel and the function that sizes its scratch
// share it. Plain arithmetic, without an instruction set; no choice here changes a result bit.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/attention.h"

namespace tandem::kernels {

// Rows of one sequence that one task handles.
struct RowBlock {
  int32_t sequence;
  int32_t first_row;  // within the sequence
  int32_t num_rows;
  int32_t first_partition;
  int32_t end_partition;
  int32_t first_task;    // when partitions are split
  int64_t first_record;  // of its partials, in units of one (partition, row, head)
};

namespace {

// Query vectors (row, head) of one KV head that one task carries through the partitions together,
// so that K and V of a partition come from L2 for all of them: four blocks of twelve, or two pairs
// of tiles.
constexpr int64_t kTaskVectors = 48;
constexpr int64_t kTileTaskVectors = 64;
// Each partition becomes a task while there are fewer tasks per worker than this.
constexpr int64_t kTasksPerWorker = 4;
// A task takes as many KV heads of a sequence as fit into this many bytes of a partition. The
// partition that it reads and the one that it prefetches then stay in half of L2.
constexpr int64_t kTaskPartitionBytes = 256 << 10;
// Floats of a worker's stream of K and V.
constexpr int64_t kStreamFloats = 32;
// Floats beside `head_dim` in the record of one partition of one query vector: m, l, padding.
constexpr int64_t kRecordExtra = 16;

// Scratch holds at most this many bytes of records, or those of one row at the full context if they
// are more. A call with more records does not split partitions.
constexpr int64_t kRecordsBytesMax = int64_t{256} << 20;

struct AttentionPlan {
  int64_t heads_per_kv = 0;
  int64_t rows_per_block = 0;
  int64_t block_list_bytes = 0;
  int64_t worker_floats = 0;  // q, (m, l, o) of a group and of the total, and a stream
  int64_t record_floats = 0;
};

inline int64_t RoundUpTo64(int64_t bytes) { return (bytes + 63) / 64 * 64; }

// `task_vectors`: one of the two above; the larger for scratch that serves every class.
inline AttentionPlan PlanAttention(int32_t num_heads, const KvShape& kv, int64_t max_rows,
                                   int64_t task_vectors = kTileTaskVectors) {
  AttentionPlan plan;
  plan.heads_per_kv = num_heads / kv.num_kv_heads;
  const int64_t rows = task_vectors / plan.heads_per_kv;
  plan.rows_per_block = rows < 1 ? 1 : rows;
  const int64_t vectors = plan.rows_per_block * plan.heads_per_kv;
  plan.block_list_bytes = RoundUpTo64(max_rows * static_cast<int64_t>(sizeof(RowBlock)));
  plan.worker_floats = RoundUpTo64(vectors * (3 * kv.head_dim + 4) * 4) / 4 + kStreamFloats;
  plan.record_floats = kv.head_dim + kRecordExtra;
  return plan;
}

// Bytes of the list that holds the first task of each sequence of AttentionPartials.
inline int64_t PartialsListBytes(int64_t max_sequences) {
  return RoundUpTo64(max_sequences * static_cast<int64_t>(sizeof(int64_t)));
}
// Floats of q that one worker of AttentionPartials packs.
inline int64_t PartialsQueryFloats(const AttentionPlan& plan, const KvShape& kv) {
  return RoundUpTo64(plan.rows_per_block * plan.heads_per_kv * kv.head_dim * 4) / 4;
}

// Whether there are so few (row block, KV head) tasks that the call must split them by partition.
inline bool SplitsPartitions(int64_t tasks, int num_workers) {
  return num_workers > 1 && tasks < kTasksPerWorker * num_workers;
}

}  // namespace
}  // namespace tandem::kernels
