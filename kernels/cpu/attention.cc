// Paged causal attention (kernels/api/attention.h). partition_pass.h computes one partition of 256
// tokens for a group of up to 12 (AVX2: 6; tiles: 32) query vectors, that is (row, head) pairs of
// one KV head.
// This file only divides the work among tasks:
//   - many blocks: a task takes one (block of rows, KV head), or one generated row and several KV
//     heads. It walks the partitions in ascending order and merges as it goes, 16 partitions into
//     their group and groups into the row's total.
//   - few blocks (a long sequence that generates alone): a task takes one (block of rows, KV head,
//     partition). Records (m, l, o) go to scratch, and a second round of tasks merges them in the
//     same order, by the same groups. Where scratch has no room for the records (attention_plan.h),
//     tasks are as above.
// Bound by FMAs for prompts, by bytes of K and V for generation.
// Measured on a Zen 4 EPYC, one thread, 512 rows at the end of 2048 tokens: AVX-512 78-101 GFLOP/s
// of 117, AVX2 70-93; on a Xeon with AMX 311-352, where FP32 FMA had 101-113.
#include "kernels/api/attention.h"

#include <new>

#include "kernels/api/require.h"
#include "kernels/api/task_range.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_vectors.h"
#include "kernels/cpu/ops.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

// One call: its arguments, its plan, and the parts of its scratch.
struct Call {
  const AttentionArgs* args;
  const ParallelFor* parallel;
  AttentionPlan plan;
  RowBlock* blocks;
  int32_t num_blocks;
  int32_t num_split_tasks;
  int64_t num_records;
  KvTasks tasks;  // unless partitions are split
  float* workers;
  float* records;
};

TANDEM_INLINE Vectors VectorsOf(const Call& call, const RowBlock& block, int32_t kv_head) {
  return {call.args, &call.args->sequences[block.sequence],       block.first_row, block.num_rows,
          kv_head,   static_cast<int32_t>(call.plan.heads_per_kv)};
}

// Whether memory, and not products, bounds blocks of `rows` rows.
TANDEM_INLINE bool Streams(const Call& call, int64_t rows) {
  return rows * call.plan.heads_per_kv <= kStreamingRows;
}

TANDEM_INLINE KvStream* StreamOf(const Call& call, int worker) {
  float* end = call.workers + (worker + 1) * call.plan.worker_floats;
  static_assert(sizeof(KvStream) <= kStreamFloats * sizeof(float));
  return reinterpret_cast<KvStream*>(end - kStreamFloats);
}

// (m, l, o) of each of a task's vectors.
struct States {
  float* o;
  float* m;
  float* l;
  int32_t head_dim;

  TANDEM_INLINE SoftmaxState Of(int64_t j) const { return {m + j, l + j, o + j * head_dim}; }
};
// `count` empty ones, in [count · (head_dim + 2)] floats.
TANDEM_INLINE States EmptyStates(float* memory, int64_t count, int32_t head_dim) {
  float* m = memory + count * head_dim;
  const States states = {memory, m, m + count, head_dim};
  for (int64_t j = 0; j < count; ++j) states.l[j] = 0;
  return states;
}
// Folds each vector's group into its total, and empties the group.
void FoldGroups(const AttentionArgs& args, const States& total, const States& group,
                int64_t count) {
  for (int64_t j = 0; j < count; ++j) {
    Merge(args, total.Of(j), group.Of(j));
    group.l[j] = 0;
  }
}

// The KV heads of one task, and where its worker keeps things: q of every vector of every head, and
// (m, l, o) of the group of partitions that the task is in and of the groups before it.
struct WholeTask {
  const RowBlock* block;
  int32_t first_head, end_head;
  int64_t vectors;  // of a head
  float* q;
  States group, total;

  TANDEM_INLINE int64_t all() const { return (end_head - first_head) * vectors; }
  TANDEM_INLINE int64_t FirstOf(int32_t head) const { return (head - first_head) * vectors; }
};
TANDEM_INLINE WholeTask WholeTaskOf(const Call& call, int64_t index, int worker) {
  const KvTasks& tasks = call.tasks;
  const KvShape& shape = call.args->layer.shape;
  WholeTask task;
  task.block = &call.blocks[index / tasks.head_tasks];
  task.first_head = static_cast<int32_t>(index % tasks.head_tasks) * tasks.heads;
  const int32_t end = task.first_head + tasks.heads;
  task.end_head = end < shape.num_kv_heads ? end : shape.num_kv_heads;
  task.vectors = task.block->num_rows * call.plan.heads_per_kv;
  task.q = call.workers + worker * call.plan.worker_floats;
  float* states = task.q + task.all() * shape.head_dim;
  task.group = EmptyStates(states, task.all(), shape.head_dim);
  states += task.all() * (shape.head_dim + 2);
  task.total = EmptyStates(states, task.all(), shape.head_dim);
  return task;
}

// One task: computes all partitions of its vectors and merges each as soon as it is computed.
void RunWhole(const Call& call, int64_t index, int worker) {
  const AttentionArgs& args = *call.args;
  const int32_t head_dim = args.layer.shape.head_dim;
  const WholeTask task = WholeTaskOf(call, index, worker);
  const RowBlock& block = *task.block;
  KvStream* stream = Streams(call, block.num_rows) ? StreamOf(call, worker) : nullptr;
  if (stream != nullptr) stream->Begin(index);
  for (int32_t head = task.first_head; head < task.end_head; ++head) {
    PackQueries(VectorsOf(call, block, head), task.q + task.FirstOf(head) * head_dim);
  }
  for (int32_t p = block.first_partition; p < block.end_partition; ++p) {
    const bool begins_group = p % kGroupPartitions == 0;
    if (begins_group && p > block.first_partition) {
      FoldGroups(args, task.total, task.group, task.all());
    }
    if (stream != nullptr) stream->FetchBelow(index, (p + 1) * kPartitionTokens);
    for (int32_t head = task.first_head; head < task.end_head; ++head) {
      const int64_t first = task.FirstOf(head);
      RunPartition(VectorsOf(call, block, head), task.q + first * head_dim, p, stream,
                   [&](int64_t j, const SoftmaxState& part) {
                     Merge(args, task.group.Of(first + j), part);
                   });
    }
  }
  // Most sequences fit into one group, which is then their total.
  const bool one_group = EndOfGroup(block.first_partition) >= block.end_partition;
  if (!one_group) FoldGroups(args, task.total, task.group, task.all());
  const States& result = one_group ? task.group : task.total;
  for (int64_t j = 0; j < task.all(); ++j) {
    const int32_t head = static_cast<int32_t>(task.first_head + j / task.vectors);
    Finish(VectorsOf(call, block, head), j % task.vectors, result.Of(j));
  }
}

// Divides a call into tasks for RunWhole. A task of a generated row takes several KV heads, whose K
// and V are adjacent in memory, if that leaves enough tasks.
void ListTasks(Call* call, int num_workers) {
  const AttentionArgs& args = *call->args;
  const KvShape& shape = args.layer.shape;
  int64_t rows_max = 1;
  for (int32_t b = 0; b < call->num_blocks; ++b) {
    if (call->blocks[b].num_rows > rows_max) rows_max = call->blocks[b].num_rows;
  }
  const int64_t per_kv = call->plan.heads_per_kv;
  int64_t heads = kTaskPartitionBytes * shape.block_tokens / kPartitionTokens / 2 /
                  static_cast<int64_t>(KvSlabBytes(shape));
  const int64_t room = call->plan.rows_per_block / rows_max;  // of worker_floats
  heads = heads < room ? heads : room;
  heads = heads < shape.num_kv_heads ? heads : shape.num_kv_heads;
  if (heads < 1 || !Streams(*call, rows_max)) heads = 1;
  int64_t head_tasks = (shape.num_kv_heads + heads - 1) / heads;
  if (call->num_blocks * head_tasks < kTasksPerWorker * num_workers) {
    heads = 1;
    head_tasks = shape.num_kv_heads;
  }
  call->tasks = {&args,
                 call->blocks,
                 call->num_blocks * head_tasks,
                 head_tasks,
                 static_cast<int32_t>(heads),
                 kStreamingRows / per_kv};
  for (int worker = 0; worker < num_workers; ++worker) {
    new (StreamOf(*call, worker)) KvStream(&call->tasks);
  }
}

// The records of one block and KV head.
struct BlockRecords {
  const Call* call;
  const RowBlock* block;
  int32_t kv_head;

  // The record of vector j and one partition.
  TANDEM_INLINE SoftmaxState Of(int32_t partition, int64_t j) const {
    const int64_t heads = call->args->layer.shape.num_kv_heads;
    const int64_t vectors = block->num_rows * call->plan.heads_per_kv;
    const int64_t row = (partition - block->first_partition) * heads + kv_head;
    const int64_t index = block->first_record + row * vectors + j;
    float* record = call->records + index * call->plan.record_floats;
    return {record, record + 1, record + kRecordExtra};
  }
};

// One task of a split call: one partition of one block and KV head. All partitions of a head follow
// each other, so that every worker gets about as many full ones.
struct SplitTask {
  const RowBlock* block;
  int32_t kv_head, partition;
};
TANDEM_INLINE SplitTask SplitTaskOf(const Call& call, int64_t task) {
  int32_t b = 0;
  while (b + 1 < call.num_blocks && call.blocks[b + 1].first_task <= task) ++b;
  const RowBlock& block = call.blocks[b];
  const int32_t partitions = block.end_partition - block.first_partition;
  const int32_t within = static_cast<int32_t>(task) - block.first_task;
  return {&block, within / partitions, block.first_partition + within % partitions};
}

// Prefetches all K and V that a task reads.
void FetchSplit(const Call& call, int64_t task) {
  const SplitTask split = SplitTaskOf(call, task);
  if (!Streams(call, split.block->num_rows)) return;
  FetchPartition(VectorsOf(call, *split.block, split.kv_head), split.partition);
}

void RunSplit(const Call& call, int64_t task, int worker) {
  const int workers = call.parallel->num_workers;
  // A worker prefetches each partition while it reads the one before; its first partition, and
  // those it takes from other workers, when it begins them.
  const int64_t first = FirstTask(call.num_split_tasks, worker, workers);
  const int64_t end = FirstTask(call.num_split_tasks, worker + 1, workers);
  if (task <= first || task >= end) FetchSplit(call, task);
  if (task >= first && task + 1 < end) FetchSplit(call, task + 1);
  const SplitTask split = SplitTaskOf(call, task);
  const Vectors vectors = VectorsOf(call, *split.block, split.kv_head);
  const BlockRecords records = {&call, split.block, split.kv_head};
  float* q = call.workers + worker * call.plan.worker_floats;
  PackQueries(vectors, q);
  RunPartition(vectors, q, split.partition, nullptr, [&](int64_t j, const SoftmaxState& part) {
    const SoftmaxState record = records.Of(split.partition, j);
    *record.l = 0;
    Merge(*call.args, record, part);
  });
}

// Second round of a split call: merges the records of one block and KV head. The first record of a
// group becomes the group's, and the first group's the vector's total.
void MergeRecords(const Call& call, const RowBlock& block, int32_t kv_head) {
  const Vectors vectors = VectorsOf(call, block, kv_head);
  const BlockRecords records = {&call, &block, kv_head};
  for (int64_t j = 0; j < vectors.count(); ++j) {
    const SoftmaxState total = records.Of(block.first_partition, j);
    for (int32_t p = block.first_partition; p < block.end_partition;) {
      const SoftmaxState group = records.Of(p, j);
      const bool first_group = p == block.first_partition;
      const int32_t end = EndOfGroup(p);
      for (++p; p < end && p < block.end_partition; ++p) {
        Merge(*call.args, group, records.Of(p, j));
      }
      if (!first_group) Merge(*call.args, total, group);
    }
    Finish(vectors, j, total);
  }
}

// Divides the sequences into row blocks. `capacity` is the most that the list holds.
void ListBlocks(Call* call, int64_t capacity) {
  const AttentionArgs& args = *call->args;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    const SequenceRows& sequence = args.sequences[s];
    for (int32_t row = 0; row < sequence.num_rows;) {
      KERNEL_REQUIRE(call->num_blocks < capacity);
      RowBlock& block = call->blocks[call->num_blocks++];
      const int32_t left = sequence.num_rows - row;
      const int32_t most = static_cast<int32_t>(call->plan.rows_per_block);
      const int32_t first = sequence.first_position + row;
      block.sequence = s;
      block.first_row = row;
      block.num_rows = left < most ? left : most;
      block.first_partition = RowBegin(args, first) / kPartitionTokens;
      block.end_partition = (first + block.num_rows - 1) / kPartitionTokens + 1;
      block.first_task = call->num_split_tasks;
      block.first_record = call->num_records;
      const int32_t tasks =
          (block.end_partition - block.first_partition) * args.layer.shape.num_kv_heads;
      call->num_split_tasks += tasks;
      call->num_records += tasks * block.num_rows * call->plan.heads_per_kv;
      row += block.num_rows;
    }
  }
}

void RequireArgs(const AttentionArgs& args) {
  RequireKvLayer(args.layer);
  KERNEL_REQUIRE(args.num_heads > 0 && args.num_heads % args.layer.shape.num_kv_heads == 0);
  const int64_t row_size = static_cast<int64_t>(args.num_heads) * args.layer.shape.head_dim;
  KERNEL_REQUIRE(kTakesBf16 || args.out_bf16 == nullptr);
  KERNEL_REQUIRE(args.q_stride >= row_size && args.out_stride >= row_size);
  KERNEL_REQUIRE(reinterpret_cast<uintptr_t>(args.scratch) % 64 == 0);
}

}  // namespace

void Attention(const AttentionArgs& args, const ParallelFor& parallel) {
  RequireArgs(args);
  int64_t rows = 0;
  for (int32_t s = 0; s < args.num_sequences; ++s) rows += args.sequences[s].num_rows;
  if (rows == 0) return;
  Call call = {};
  call.args = &args;
  call.parallel = &parallel;
  call.plan = PlanAttention(args.num_heads, args.layer.shape, rows, TaskVectors(args));
  int64_t used = call.plan.block_list_bytes;
  char* scratch = static_cast<char*>(args.scratch);
  call.blocks = reinterpret_cast<RowBlock*>(scratch);
  call.workers = reinterpret_cast<float*>(scratch + used);
  used += parallel.num_workers * call.plan.worker_floats * static_cast<int64_t>(sizeof(float));
  call.records = reinterpret_cast<float*>(scratch + used);
  KERNEL_REQUIRE(used <= static_cast<int64_t>(args.scratch_bytes));
  ListBlocks(&call, rows);

  const int32_t kv_heads = args.layer.shape.num_kv_heads;
  const int64_t tasks = static_cast<int64_t>(call.num_blocks) * kv_heads;
  const int64_t records_bytes =
      call.num_records * call.plan.record_floats * static_cast<int64_t>(sizeof(float));
  const bool records_fit = used + records_bytes <= static_cast<int64_t>(args.scratch_bytes);
  if (!records_fit || !SplitsPartitions(tasks, parallel.num_workers)) {
    ListTasks(&call, parallel.num_workers);
    parallel(call.tasks.num_tasks, [&](int64_t task, int worker) { RunWhole(call, task, worker); });
    return;
  }
  parallel(call.num_split_tasks, [&](int64_t task, int worker) { RunSplit(call, task, worker); });
  parallel(tasks, [&](int64_t task, int) {
    MergeRecords(call, call.blocks[task / kv_heads], static_cast<int32_t>(task % kv_heads));
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
