// Paged causal attention (kernels/api/attention.h). partition_pass.h computes one partition of 256
// tokens for a block of up to 12 (AVX2: 6) query vectors, that is (row, head) pairs of one KV head.
// This file only divides the work among tasks:
//   - many blocks: a task takes one (block of rows, KV head), or one generated row and several KV
//     heads. It walks the partitions in ascending order and merges as it goes.
//   - few blocks (a long sequence that generates alone): a task takes one (block of rows, KV head,
//     partition). Records (m, l, o) go to scratch, and a second round of tasks merges them in the
//     same ascending order.
// Bound by FMAs for prompts, by bytes of K and V for generation.
// Measured on a Zen 4 EPYC, one thread, 512 rows at the end of 2048 tokens: AVX-512 78-101 GFLOP/s
// of 117, AVX2 70-93.
#include "kernels/api/attention.h"

#include <new>

#include "kernels/api/require.h"
#include "kernels/api/task_range.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/gemm_dot.h"
#include "kernels/cpu/int8_cache.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/partition_pass.h"

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

TANDEM_INLINE int32_t RowBegin(const AttentionArgs& args, int32_t position) {
  if (args.sliding_window <= 0 || position + 1 <= args.sliding_window) return 0;
  return position + 1 - args.sliding_window;
}

// Query vectors of one block of rows and one KV head; vector j is row j / heads_per_kv of the block
// and head j % heads_per_kv of the KV head.
struct Vectors {
  const Call* call;
  const RowBlock* block;
  int32_t kv_head;

  TANDEM_INLINE int64_t count() const { return block->num_rows * call->plan.heads_per_kv; }
  TANDEM_INLINE int64_t Row(int64_t j) const {
    return call->args->sequences[block->sequence].first_row + block->first_row +
           j / call->plan.heads_per_kv;
  }
  TANDEM_INLINE int64_t HeadOffset(int64_t j) const {
    const int64_t head = kv_head * call->plan.heads_per_kv + j % call->plan.heads_per_kv;
    return head * call->args->layer.shape.head_dim;
  }
  TANDEM_INLINE int32_t Position(int64_t j) const {
    return call->args->sequences[block->sequence].first_position + block->first_row +
           static_cast<int32_t>(j / call->plan.heads_per_kv);
  }
};

// The vectors divided into register blocks of nearly equal size.
TANDEM_INLINE int64_t NumGroups(int64_t count) {
  return (count + kMaxBlockRows - 1) / kMaxBlockRows;
}

// Whether this call uses bf16 dot products.
TANDEM_INLINE bool UsesDot(const AttentionArgs& args) {
  return kHasDotProducts && args.layer.shape.type == KvType::kBf16;
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
// [head_dim / 2][group size], or as int8 (see RunPartitionGroupInt8).
void PackQueries(const Vectors& vectors, float* packed) {
  const AttentionArgs& args = *vectors.call->args;
  const int32_t head_dim = args.layer.shape.head_dim;
  const int64_t count = vectors.count(), groups = NumGroups(count);
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = count * g / groups, size = count * (g + 1) / groups - begin;
    float* out = packed + begin * head_dim;
    for (int64_t r = 0; r < size; ++r) {
      const float* q =
          args.q + vectors.Row(begin + r) * args.q_stride + vectors.HeadOffset(begin + r);
      if (args.layer.shape.type == KvType::kInt8) {
        PackQuads(q, args.scale, {head_dim, size}, reinterpret_cast<uint32_t*>(out) + r);
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
#if defined(__AVX512BF16__)
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
  const AttentionArgs& args = *vectors.call->args;
  const int32_t head_dim = args.layer.shape.head_dim;
  const int64_t count = vectors.count(), groups = NumGroups(count);
  alignas(64) float o[kMaxBlockRows * 256];
  float m[kMaxBlockRows], l[kMaxBlockRows];
  for (int64_t g = 0; g < groups; ++g) {
    const int64_t begin = count * g / groups;
    PartitionGroup group = {};
    group.size = static_cast<int32_t>(count * (g + 1) / groups - begin);
    group.q = packed_q + begin * head_dim;
    group.q_pairs = group.q;
    group.layer = &args.layer;
    group.block_table = args.sequences[vectors.block->sequence].block_table;
    group.kv_head = vectors.kv_head;
    group.first_token = partition * kPartitionTokens;
    group.stream = stream;
    for (int32_t r = 0; r < group.size; ++r) {
      const int32_t position = vectors.Position(begin + r);
      group.begin[r] = ClampToPartition(RowBegin(args, position) - group.first_token);
      group.end[r] = ClampToPartition(position + 1 - group.first_token);
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

// The merge and the end of a row's softmax, for the call's cache type.
TANDEM_INLINE void Merge(const AttentionArgs& args, const SoftmaxState& into,
                         const SoftmaxState& part) {
#if defined(__AVX512BF16__)
  if (UsesDot(args)) {
    MergeSoftmax<BinaryExponential>(into, part, args.layer.shape.head_dim);
    return;
  }
#endif
  MergeSoftmax<NaturalExponential>(into, part, args.layer.shape.head_dim);
}

TANDEM_INLINE void Finish(const Vectors& vectors, int64_t j, const SoftmaxState& state) {
  const AttentionArgs& args = *vectors.call->args;
  const int64_t at = vectors.Row(j) * args.out_stride + vectors.HeadOffset(j);
  if (args.out_bf16 != nullptr) {
    FinishSoftmax(state, args.layer.shape.head_dim,
                  [&](int32_t d, V16 value) { StoreBf16(args.out_bf16 + at + d, value); });
    return;
  }
  FinishSoftmax(state, args.layer.shape.head_dim,
                [&](int32_t d, V16 value) { Store(args.out + at + d, value); });
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

// One task: computes all partitions of its vectors and merges each as soon as it is computed.
void RunWhole(const Call& call, int64_t task, int worker) {
  const AttentionArgs& args = *call.args;
  const KvTasks& tasks = call.tasks;
  const int32_t head_dim = args.layer.shape.head_dim, kv_heads = args.layer.shape.num_kv_heads;
  const RowBlock& block = call.blocks[task / tasks.head_tasks];
  const int32_t first_head = static_cast<int32_t>(task % tasks.head_tasks) * tasks.heads;
  const int32_t end_head =
      first_head + tasks.heads < kv_heads ? first_head + tasks.heads : kv_heads;
  const int64_t count = block.num_rows * call.plan.heads_per_kv;  // vectors of a head
  const int64_t all = (end_head - first_head) * count;
  float* q = call.workers + worker * call.plan.worker_floats;
  float* o = q + all * head_dim;
  float* m = o + all * head_dim;
  float* l = m + all;
  KvStream* stream = Streams(call, block.num_rows) ? StreamOf(call, worker) : nullptr;
  if (stream != nullptr) stream->Begin(task);
  for (int64_t j = 0; j < all; ++j) l[j] = 0;
  for (int32_t head = first_head; head < end_head; ++head) {
    PackQueries({&call, &block, head}, q + (head - first_head) * count * head_dim);
  }
  for (int32_t p = block.first_partition; p < block.end_partition; ++p) {
    if (stream != nullptr) stream->FetchBelow(task, (p + 1) * kPartitionTokens);
    for (int32_t head = first_head; head < end_head; ++head) {
      const int64_t first = (head - first_head) * count;
      RunPartition({&call, &block, head}, q + first * head_dim, p, stream,
                   [&](int64_t j, const SoftmaxState& part) {
                     j += first;
                     Merge(args, {m + j, l + j, o + j * head_dim}, part);
                   });
    }
  }
  for (int64_t j = 0; j < all; ++j) {
    const Vectors vectors = {&call, &block, static_cast<int32_t>(first_head + j / count)};
    Finish(vectors, j % count, {m + j, l + j, o + j * head_dim});
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

// The address of the record of (block, partition, kv head, vector).
TANDEM_INLINE SoftmaxState Record(const Call& call, const Vectors& vectors, int32_t partition,
                                  int64_t j) {
  const RowBlock& block = *vectors.block;
  const int64_t heads = call.args->layer.shape.num_kv_heads;
  const int64_t index =
      block.first_record +
      ((partition - block.first_partition) * heads + vectors.kv_head) * vectors.count() + j;
  float* record = call.records + index * call.plan.record_floats;
  return {record, record + 1, record + kRecordExtra};
}

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
  const AttentionArgs& args = *call.args;
  const KvShape& shape = args.layer.shape;
  const SplitTask split = SplitTaskOf(call, task);
  if (!Streams(call, split.block->num_rows)) return;
  const SequenceRows& sequence = args.sequences[split.block->sequence];
  const int32_t first = sequence.first_position + split.block->first_row;
  const int32_t base = split.partition * kPartitionTokens;
  const int32_t begin = base + ClampToPartition(RowBegin(args, first) - base) / 16 * 16;
  const int32_t end = base + ClampToPartition(first + split.block->num_rows - base);
  const int64_t slab_bytes = static_cast<int64_t>(KvSlabBytes(shape));
  const int64_t tile_bytes = slab_bytes / (shape.block_tokens / 16);
  for (int32_t token = begin; token < end; token += 16) {
    const char* key =
        static_cast<const char*>(args.layer.base) +
        sequence.block_table[token / shape.block_tokens] * args.layer.block_stride_bytes +
        split.kv_head * 2 * slab_bytes + token % shape.block_tokens / 16 * tile_bytes;
    for (int64_t i = 0; i < tile_bytes; i += 64) {
      _mm_prefetch(key + i, _MM_HINT_T1);
      _mm_prefetch(key + slab_bytes + i, _MM_HINT_T1);
    }
  }
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
  const Vectors vectors = {&call, split.block, split.kv_head};
  float* q = call.workers + worker * call.plan.worker_floats;
  PackQueries(vectors, q);
  RunPartition(vectors, q, split.partition, nullptr, [&](int64_t j, const SoftmaxState& part) {
    const SoftmaxState record = Record(call, vectors, split.partition, j);
    *record.l = 0;
    Merge(*call.args, record, part);
  });
}

// Second round of a split call: merges the records of one block and KV head.
void MergeRecords(const Call& call, const RowBlock& block, int32_t kv_head) {
  const Vectors vectors = {&call, &block, kv_head};
  for (int64_t j = 0; j < vectors.count(); ++j) {
    const SoftmaxState total = Record(call, vectors, block.first_partition, j);
    for (int32_t p = block.first_partition + 1; p < block.end_partition; ++p) {
      Merge(*call.args, total, Record(call, vectors, p, j));
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
  call.plan = PlanAttention(args.num_heads, args.layer.shape, rows);
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
  if (!SplitsPartitions(tasks, parallel.num_workers)) {
    ListTasks(&call, parallel.num_workers);
    parallel(call.tasks.num_tasks, [&](int64_t task, int worker) { RunWhole(call, task, worker); });
    return;
  }
  used += call.num_records * call.plan.record_floats * static_cast<int64_t>(sizeof(float));
  KERNEL_REQUIRE(used <= static_cast<int64_t>(args.scratch_bytes));
  parallel(call.num_split_tasks, [&](int64_t task, int worker) { RunSplit(call, task, worker); });
  parallel(tasks, [&](int64_t task, int) {
    MergeRecords(call, call.blocks[task / kv_heads], static_cast<int32_t>(task % kv_heads));
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
