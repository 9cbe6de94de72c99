// Attention over some partitions, and the merge of records (kernels/api/attention_partials.h), of
// the same parts as attention.cc (attention_vectors.h).
//
// Grid of the first step: a task is one piece, one KV head and one block of rows. A task folds the
// partitions of its piece straight into its rows' records. Bound by bytes of K and V for generated
// rows. Grid of the second: a task is one head of one sequence's rows. Bound by bytes of records.
#include "kernels/api/attention_partials.h"

#include "kernels/api/require.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_vectors.h"
#include "kernels/cpu/ops.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

struct Call {
  const AttentionPartialsArgs* args;
  AttentionArgs attention;  // what the two operators share
  AttentionPlan plan;
  int64_t* first_tasks;  // [num_sequences]
  float* q;              // [workers][partials_q_floats]
};

int64_t NumBlocks(const Call& call, const PartialsSequence& sequence) {
  return (sequence.num_rows + call.plan.rows_per_block - 1) / call.plan.rows_per_block;
}

// The sequence of a task: the last whose first task is not after it.
int32_t SequenceOf(const Call& call, int64_t task) {
  int32_t low = 0, high = call.args->num_sequences;
  while (high - low > 1) {
    const int32_t middle = low + (high - low) / 2;
    (call.first_tasks[middle] <= task ? low : high) = middle;
  }
  return low;
}

// The records of one piece of a sequence.
struct PieceOut {
  float* records;
  const Vectors* vectors;

  TANDEM_INLINE SoftmaxState Of(int64_t j) const {
    const int64_t index = vectors->RowInSequence(j) * vectors->args->num_heads + vectors->Head(j);
    float* record = records + index * RecordFloats(vectors->args->layer.shape.head_dim);
    return {record, record + 1, record + 2};
  }
};

void RunPiece(const Vectors& vectors, const AttentionPiece& piece, const PieceOut& out, float* q) {
  const int32_t head_dim = vectors.args->layer.shape.head_dim;
  PackQueries(vectors, q);
  for (int64_t j = 0; j < vectors.count(); ++j) *out.Of(j).l = 0;
  // Memory bounds generated rows, so the next partition is on its way while one is read.
  const bool fetches = vectors.count() <= kStreamingRows;
  if (fetches) FetchPartition(vectors, piece.first_partition);
  for (int32_t i = 0; i < piece.num_partitions; ++i) {
    if (fetches && i + 1 < piece.num_partitions) {
      FetchPartition(vectors, piece.first_partition + i + 1);
    }
    RunPartition(
        vectors, q, piece.first_partition + i, nullptr,
        [&](int64_t j, const SoftmaxState& part) { Merge(*vectors.args, out.Of(j), part); });
  }
  for (int64_t j = 0; j < vectors.count(); ++j) {
    const SoftmaxState record = out.Of(j);
    if (*record.l != 0) continue;
    *record.m = 0;
    for (int32_t d = 0; d < head_dim; d += 16) Store(record.o + d, Zero());
  }
}

void RunTask(const Call& call, int64_t task, int worker) {
  const KvShape& shape = call.args->layer.shape;
  const int32_t s = SequenceOf(call, task);
  const PartialsSequence& sequence = call.args->sequences[s];
  const int64_t within = task - call.first_tasks[s], blocks = NumBlocks(call, sequence);
  const int64_t block = within % blocks, head = within / blocks % shape.num_kv_heads;
  const int32_t index = static_cast<int32_t>(within / blocks / shape.num_kv_heads);
  const SequenceRows rows = {sequence.block_table, sequence.first_row, sequence.num_rows,
                             sequence.first_position};
  const int32_t most = static_cast<int32_t>(call.plan.rows_per_block);
  const int32_t first_row = static_cast<int32_t>(block) * most;
  const int32_t left = sequence.num_rows - first_row;
  const Vectors vectors = {&call.attention,
                           &rows,
                           first_row,
                           left < most ? left : most,
                           static_cast<int32_t>(head),
                           static_cast<int32_t>(call.plan.heads_per_kv),
                           sequence.span.first};
  const int64_t piece_floats =
      int64_t{sequence.num_rows} * call.args->num_heads * RecordFloats(shape.head_dim);
  RunPiece(vectors, PieceAt(sequence.span, index),
           {sequence.records + index * piece_floats, &vectors},
           call.q + worker * PartialsQueryFloats(call.plan, shape));
}

// Merges all records of one head of a sequence's rows.
void MergeHead(const AttentionArgs& attention, const MergeSequence& sequence, int32_t head) {
  const int32_t head_dim = attention.layer.shape.head_dim;
  alignas(64) float group_o[256], total_o[256];
  float m[2] = {}, l[2];
  const SoftmaxState group = {m, l, group_o}, total = {m + 1, l + 1, total_o};
  for (int32_t row = 0; row < sequence.num_rows; ++row) {
    l[0] = l[1] = 0;
    const int64_t at = (int64_t{row} * attention.num_heads + head) * RecordFloats(head_dim);
    for (int32_t i = 0; i < sequence.num_pieces; ++i) {
      const AttentionPiece& piece = sequence.pieces[i].piece;
      const float* record = sequence.pieces[i].records + at;
      const SoftmaxPart part = {record, record + 1, record + 2};
      if (piece.num_partitions == kGroupPartitions) {
        Merge(attention, total, part);
        continue;
      }
      Merge(attention, group, part);
      const bool ends_group = EndOfGroup(piece.first_partition) == piece.first_partition + 1;
      if (!ends_group && i + 1 < sequence.num_pieces) continue;
      Merge(attention, total, group);
      l[0] = 0;
    }
    Finish(attention,
           (int64_t{sequence.first_row} + row) * attention.out_stride + int64_t{head} * head_dim,
           total);
  }
}

}  // namespace

void AttentionPartials(const AttentionPartialsArgs& args, const ParallelFor& parallel) {
  RequireNoFault(args);
  RequireKvLayer(args.layer);
  KERNEL_REQUIRE(reinterpret_cast<uintptr_t>(args.scratch) % 64 == 0);
  if (args.num_sequences == 0) return;
  const KvShape& shape = args.layer.shape;
  Call call = {};
  call.args = &args;
  call.attention.q = args.q;
  call.attention.q_stride = args.q_stride;
  call.attention.num_heads = args.num_heads;
  call.attention.scale = args.scale;
  call.attention.sliding_window = args.sliding_window;
  call.attention.layer = args.layer;
  call.plan = PlanAttention(args.num_heads, shape, 0, TaskVectors(call.attention));
  const int64_t list_bytes = PartialsListBytes(args.num_sequences);
  KERNEL_REQUIRE(list_bytes + parallel.num_workers * PartialsQueryFloats(call.plan, shape) * 4 <=
                 static_cast<int64_t>(args.scratch_bytes));
  call.first_tasks = static_cast<int64_t*>(args.scratch);
  call.q = reinterpret_cast<float*>(static_cast<char*>(args.scratch) + list_bytes);
  int64_t tasks = 0;
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    call.first_tasks[s] = tasks;
    const PartialsSequence& sequence = args.sequences[s];
    tasks += NumBlocks(call, sequence) * NumPieces(sequence.span) * shape.num_kv_heads;
  }
  parallel(tasks, [&](int64_t task, int worker) { RunTask(call, task, worker); });
}

void MergePartials(const MergePartialsArgs& args, const ParallelFor& parallel) {
  RequireNoFault(args);
  KERNEL_REQUIRE(args.kv.type != KvType::kFp8);
  KERNEL_REQUIRE(kTakesBf16 || args.out_bf16 == nullptr);
  AttentionArgs attention;
  attention.num_heads = args.num_heads;
  attention.layer.shape = args.kv;
  attention.out = args.out;
  attention.out_bf16 = args.out_bf16;
  attention.out_stride = args.out_stride;
  const int64_t tasks = int64_t{args.num_sequences} * args.num_heads;
  parallel(tasks, [&](int64_t task, int) {
    MergeHead(attention, args.sequences[task / args.num_heads],
              static_cast<int32_t>(task % args.num_heads));
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
