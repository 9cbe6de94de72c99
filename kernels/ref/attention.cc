// Attention by its formula (kernels/api/attention.h, attention_partials.h): each partition in
// double, its record rounded to fp32, and the merge in double. A group's record is rounded to fp32
// as well, so a group that travels has the bits of one that does not.
#include <cmath>
#include <vector>

#include "kernels/api/require.h"
#include "kernels/ref/ops.h"

namespace tandem::kernels::ref {
namespace {

// One head of one row, and the block table of its sequence from `table_partition` on.
struct Query {
  const float* q;
  const int32_t* block_table;
  int32_t table_partition;
  int32_t position;
  int32_t kv_head;
};

// What both operators read.
struct Cache {
  KvLayer layer;
  float scale;
  int32_t sliding_window;
};

// (m, l, o) over the tokens of one partition or more, as a record holds it.
struct Record {
  explicit Record(int32_t head_dim) : values(static_cast<size_t>(RecordFloats(head_dim))) {}
  std::vector<float> values;
};

// A fold of records, in the order in which they are added. l = 0: nothing yet.
class Fold {
 public:
  explicit Fold(int32_t head_dim) : o_(static_cast<size_t>(head_dim)) {}

  void Add(const float* record) {
    const double m = record[0], l = record[1];
    if (l == 0) return;
    const double most = l_ == 0 ? m : std::max(m_, m);
    const double old_factor = l_ == 0 ? 0 : std::exp(m_ - most), factor = std::exp(m - most);
    m_ = most;
    l_ = l_ * old_factor + l * factor;
    for (size_t d = 0; d < o_.size(); ++d) o_[d] = o_[d] * old_factor + record[2 + d] * factor;
  }
  Record Rounded() const {
    Record record(static_cast<int32_t>(o_.size()));
    record.values[0] = static_cast<float>(m_);
    record.values[1] = static_cast<float>(l_);
    for (size_t d = 0; d < o_.size(); ++d) record.values[2 + d] = static_cast<float>(o_[d]);
    return record;
  }
  void Finish(float* out) const {
    for (size_t d = 0; d < o_.size(); ++d) out[d] = static_cast<float>(o_[d] / l_);
  }

 private:
  double m_ = 0, l_ = 0;
  std::vector<double> o_;
};

void ReadToken(const Cache& cache, const Query& query, int32_t token, bool value, float* out) {
  const int32_t block_tokens = cache.layer.shape.block_tokens;
  const int32_t in_table = token - query.table_partition * kPartitionTokens;
  KvReadArgs read;
  read.layer = cache.layer;
  read.block = query.block_table[in_table / block_tokens];
  read.kv_head = query.kv_head;
  read.value = value;
  read.token = token % block_tokens;
  read.out = out;
  KvRead(read);
}

Record AttendPartition(const Cache& cache, const Query& query, int32_t partition) {
  const int32_t head_dim = cache.layer.shape.head_dim;
  const int32_t window = cache.sliding_window, first = partition * kPartitionTokens;
  const int32_t end = std::min(query.position + 1, first + kPartitionTokens);
  const int32_t begin = std::max(first, window > 0 ? query.position + 1 - window : 0);
  Record record(head_dim);
  if (begin >= end) return record;
  std::vector<float> vector(static_cast<size_t>(head_dim));
  std::vector<double> scores;
  double most = -INFINITY;
  for (int32_t t = begin; t < end; ++t) {
    ReadToken(cache, query, t, false, vector.data());
    double score = 0;
    for (int32_t d = 0; d < head_dim; ++d) {
      score += static_cast<double>(query.q[d]) * vector[static_cast<size_t>(d)];
    }
    scores.push_back(score * cache.scale);
    most = std::max(most, scores.back());
  }
  // The record's m is rounded, and l and o belong to the rounded one.
  record.values[0] = static_cast<float>(most);
  std::vector<double> o(static_cast<size_t>(head_dim));
  double sum = 0;
  for (int32_t t = begin; t < end; ++t) {
    const double p = std::exp(scores[static_cast<size_t>(t - begin)] - record.values[0]);
    sum += p;
    ReadToken(cache, query, t, true, vector.data());
    for (size_t d = 0; d < o.size(); ++d) o[d] += p * vector[d];
  }
  record.values[1] = static_cast<float>(sum);
  for (size_t d = 0; d < o.size(); ++d) record.values[2 + d] = static_cast<float>(o[d]);
  return record;
}

Record AttendPiece(const Cache& cache, const Query& query, const AttentionPiece& piece) {
  if (piece.num_partitions == 1) return AttendPartition(cache, query, piece.first_partition);
  Fold fold(cache.layer.shape.head_dim);
  for (int32_t i = 0; i < piece.num_partitions; ++i) {
    fold.Add(AttendPartition(cache, query, piece.first_partition + i).values.data());
  }
  return fold.Rounded();
}

// Folds the pieces of one row and head: partitions into their group, groups into the total.
class TwoLevelFold {
 public:
  explicit TwoLevelFold(int32_t head_dim)
      : head_dim_(head_dim), group_(head_dim), total_(head_dim) {}

  void Add(const AttentionPiece& piece, const float* record) {
    if (piece.num_partitions == kGroupPartitions) {
      total_.Add(record);
      return;
    }
    group_.Add(record);
    if (EndOfGroup(piece.first_partition) == piece.first_partition + 1) CloseGroup();
  }
  void Finish(float* out) {
    CloseGroup();
    total_.Finish(out);
  }

 private:
  void CloseGroup() {
    total_.Add(group_.Rounded().values.data());
    group_ = Fold(head_dim_);
  }

  int32_t head_dim_;
  Fold group_, total_;
};

// One row of a batch and its place in its sequence.
struct Row {
  int32_t sequence;
  int32_t index;  // within the sequence
};
template <typename Sequence>
std::vector<Row> RowsOf(const Sequence* sequences, int32_t num_sequences) {
  std::vector<Row> rows;
  for (int32_t s = 0; s < num_sequences; ++s) {
    for (int32_t i = 0; i < sequences[s].num_rows; ++i) rows.push_back({s, i});
  }
  return rows;
}

void AttendRow(const AttentionArgs& args, const Row& row, int32_t head) {
  const KvShape& shape = args.layer.shape;
  const SequenceRows& sequence = args.sequences[row.sequence];
  const Cache cache = {args.layer, args.scale, args.sliding_window};
  const int64_t in_batch = sequence.first_row + row.index;
  const Query query = {args.q + in_batch * args.q_stride + head * shape.head_dim,
                       sequence.block_table, 0, sequence.first_position + row.index,
                       head / (args.num_heads / shape.num_kv_heads)};
  TwoLevelFold fold(shape.head_dim);
  for (int32_t p = 0; p <= query.position / kPartitionTokens; ++p) {
    fold.Add({p, 1}, AttendPartition(cache, query, p).values.data());
  }
  fold.Finish(args.out + in_batch * args.out_stride + head * shape.head_dim);
}

void AttendRowPieces(const AttentionPartialsArgs& args, const Row& row, int32_t head) {
  const KvShape& shape = args.layer.shape;
  const PartialsSequence& sequence = args.sequences[row.sequence];
  const Cache cache = {args.layer, args.scale, args.sliding_window};
  const Query query = {
      args.q + (int64_t{sequence.first_row} + row.index) * args.q_stride + head * shape.head_dim,
      sequence.block_table, sequence.span.first, sequence.first_position + row.index,
      head / (args.num_heads / shape.num_kv_heads)};
  for (int32_t i = 0; i < NumPieces(sequence.span); ++i) {
    const Record record = AttendPiece(cache, query, PieceAt(sequence.span, i));
    const int64_t place = (int64_t{i} * sequence.num_rows + row.index) * args.num_heads + head;
    std::memcpy(sequence.records + place * RecordFloats(shape.head_dim), record.values.data(),
                record.values.size() * sizeof(float));
  }
}

void MergeRow(const MergePartialsArgs& args, const Row& row, int32_t head) {
  const MergeSequence& sequence = args.sequences[row.sequence];
  const int64_t place = int64_t{row.index} * args.num_heads + head;
  TwoLevelFold fold(args.kv.head_dim);
  for (int32_t i = 0; i < sequence.num_pieces; ++i) {
    const PieceRecords& given = sequence.pieces[i];
    fold.Add(given.piece, given.records + place * RecordFloats(args.kv.head_dim));
  }
  fold.Finish(args.out + (int64_t{sequence.first_row} + row.index) * args.out_stride +
              head * args.kv.head_dim);
}

}  // namespace

void Attention(const AttentionArgs& args, const ParallelFor& parallel) {
  const std::vector<Row> rows = RowsOf(args.sequences, args.num_sequences);
  parallel(static_cast<int64_t>(rows.size()), [&](int64_t row, int) {
    for (int32_t h = 0; h < args.num_heads; ++h) AttendRow(args, rows[static_cast<size_t>(row)], h);
  });
}

void AttentionPartials(const AttentionPartialsArgs& args, const ParallelFor& parallel) {
  RequireNoFault(args);
  const std::vector<Row> rows = RowsOf(args.sequences, args.num_sequences);
  parallel(static_cast<int64_t>(rows.size()), [&](int64_t row, int) {
    for (int32_t h = 0; h < args.num_heads; ++h) {
      AttendRowPieces(args, rows[static_cast<size_t>(row)], h);
    }
  });
}

void MergePartials(const MergePartialsArgs& args, const ParallelFor& parallel) {
  RequireNoFault(args);
  KERNEL_REQUIRE(args.out_bf16 == nullptr);
  const std::vector<Row> rows = RowsOf(args.sequences, args.num_sequences);
  parallel(static_cast<int64_t>(rows.size()), [&](int64_t row, int) {
    for (int32_t h = 0; h < args.num_heads; ++h) MergeRow(args, rows[static_cast<size_t>(row)], h);
  });
}

}  // namespace tandem::kernels::ref
