#include "common/engine/cpu/lent_attention.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::engine {
namespace {

// The partitions from the first local one to that of the last row.
kernels::PartitionSpan LocalSpan(const kernels::SequenceRows& rows, const RemoteKv& remote) {
  const int32_t last = rows.first_position + rows.num_rows - 1;
  return {remote.lent.back().units.end, last / kernels::kPartitionTokens + 1};
}

}  // namespace

int64_t RecordBytes(const kernels::PartitionSpan& span, int32_t rows, int32_t heads,
                    int32_t head_dim) {
  return kernels::NumPieces(span) * kernels::PieceBytes(rows, heads, head_dim);
}

void LentAttention::Attend(const kernels::AttentionArgs& args, absl::Span<RemoteKv* const> remote,
                           int layer) {
  TANDEM_CHECK(peers_ != nullptr && args.sliding_window == 0, "window ", args.sliding_window);
  Sort(args, remote, layer);
  peers_->Ask(absl::MakeSpan(parts_));
  if (!plain_.empty()) {
    kernels::AttentionArgs plain = args;
    plain.sequences = plain_.data();
    plain.num_sequences = static_cast<int32_t>(plain_.size());
    backend_.attention(plain, parallel_);
  }
  ComputeLocal(args);
  peers_->Collect(absl::MakeSpan(parts_));
  for (Borrower& borrower : borrowers_) {
    for (size_t i = 0; i < borrower.remote->lent.size(); ++i) {
      const RemotePart& part = parts_[borrower.first_part + i];
      borrower.remote->Take(part.lent, part.status);
    }
  }
  Merge(args);
}

// Divides the batch, and the memory for records. Sequences that failed in an earlier layer are left
// out.
void LentAttention::Sort(const kernels::AttentionArgs& args, absl::Span<RemoteKv* const> remote,
                         int layer) {
  plain_.clear();
  borrowers_.clear();
  parts_.clear();
  const int32_t heads = args.num_heads, head_dim = args.layer.shape.head_dim;
  size_t bytes = 0;
  for (size_t i = 0; i < remote.size(); ++i) {
    const kernels::SequenceRows& rows = args.sequences[i];
    if (remote[i] == nullptr || remote[i]->lent.empty()) {
      plain_.push_back(rows);
      continue;
    }
    if (!remote[i]->failure.ok()) continue;
    Borrower borrower{.rows = rows, .remote = remote[i], .first_part = parts_.size()};
    for (const LentUnits& lent : remote[i]->lent) {
      parts_.push_back({.lent = lent,
                        .layer = layer,
                        .num_rows = rows.num_rows,
                        .first_position = rows.first_position,
                        .q = args.q + rows.first_row * args.q_stride,
                        .q_stride = args.q_stride,
                        .q_floats = int64_t{heads} * head_dim,
                        .answer_pieces = kernels::NumPieces(PartitionsOf(lent.units))});
      bytes += RecordBytes(PartitionsOf(lent.units), rows.num_rows, heads, head_dim);
    }
    borrower.local = LocalSpan(rows, *remote[i]);
    borrower.local_floats = RecordBytes(borrower.local, rows.num_rows, heads, head_dim);
    bytes += borrower.local_floats;
    borrowers_.push_back(borrower);
  }
  if (bytes > records_.bytes()) records_ = AlignedBuffer(bytes);
  std::byte* next = static_cast<std::byte*>(records_.data());
  for (Borrower& borrower : borrowers_) {
    for (size_t i = 0; i < borrower.remote->lent.size(); ++i) {
      RemotePart& part = parts_[borrower.first_part + i];
      const size_t size =
          RecordBytes(PartitionsOf(part.lent.units), part.num_rows, heads, head_dim);
      part.answer = absl::MakeSpan(next, size);
      next += size;
    }
    const size_t size = borrower.local_floats;
    borrower.local_floats = (next - static_cast<std::byte*>(records_.data())) / sizeof(float);
    next += size;
  }
}

void LentAttention::ComputeLocal(const kernels::AttentionArgs& args) {
  if (borrowers_.empty()) return;
  std::vector<kernels::PartialsSequence> sequences;
  for (const Borrower& borrower : borrowers_) {
    const int64_t first_block =
        int64_t{borrower.local.first} * kernels::kPartitionTokens / args.layer.shape.block_tokens;
    sequences.push_back({.block_table = borrower.rows.block_table + first_block,
                         .first_row = borrower.rows.first_row,
                         .num_rows = borrower.rows.num_rows,
                         .first_position = borrower.rows.first_position,
                         .span = borrower.local,
                         .records = records_.floats() + borrower.local_floats});
  }
  kernels::AttentionPartialsArgs partials;
  partials.q = args.q;
  partials.q_stride = args.q_stride;
  partials.num_heads = args.num_heads;
  partials.scale = args.scale;
  partials.layer = args.layer;
  partials.sequences = sequences.data();
  partials.num_sequences = static_cast<int32_t>(sequences.size());
  const size_t needed = kernels::PartialsScratchBytes(
      {args.num_heads, args.layer.shape, partials.num_sequences, parallel_.num_workers});
  if (needed > scratch_.bytes()) scratch_ = AlignedBuffer(needed);
  partials.scratch = scratch_.data();
  partials.scratch_bytes = scratch_.bytes();
  backend_.attention_partials(partials, parallel_);
}

void LentAttention::Merge(const kernels::AttentionArgs& args) {
  const int32_t heads = args.num_heads, head_dim = args.layer.shape.head_dim;
  std::vector<std::vector<kernels::PieceRecords>> pieces;
  std::vector<kernels::MergeSequence> sequences;
  const auto add = [&](const kernels::PartitionSpan& span, const float* records, int32_t rows) {
    for (int32_t i = 0; i < kernels::NumPieces(span); ++i) {
      pieces.back().push_back({kernels::PieceAt(span, i), records});
      records += kernels::PieceBytes(rows, heads, head_dim) / static_cast<int64_t>(sizeof(float));
    }
  };
  for (const Borrower& borrower : borrowers_) {
    if (!borrower.remote->failure.ok()) continue;
    pieces.emplace_back();
    const int32_t rows = borrower.rows.num_rows;
    for (size_t i = 0; i < borrower.remote->lent.size(); ++i) {
      const RemotePart& part = parts_[borrower.first_part + i];
      add(PartitionsOf(part.lent.units), reinterpret_cast<const float*>(part.answer.data()), rows);
    }
    add(borrower.local, records_.floats() + borrower.local_floats, rows);
    sequences.push_back({.pieces = pieces.back().data(),  // moving the vector keeps its storage
                         .num_pieces = static_cast<int32_t>(pieces.back().size()),
                         .first_row = borrower.rows.first_row,
                         .num_rows = rows,
                         .first_position = borrower.rows.first_position});
  }
  if (sequences.empty()) return;
  kernels::MergePartialsArgs merge;
  merge.kv = args.layer.shape;
  merge.num_heads = heads;
  merge.sequences = sequences.data();
  merge.num_sequences = static_cast<int32_t>(sequences.size());
  merge.out = args.out;
  merge.out_stride = args.out_stride;
  merge.out_bf16 = args.out_bf16;
  backend_.merge_partials(merge, parallel_);
}

}  // namespace tandem::engine
