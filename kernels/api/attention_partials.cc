#include "kernels/api/attention_partials.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace tandem::kernels {
namespace {

// The partitions of a span before its first whole group, its whole groups, and those after.
struct SpanParts {
  int32_t before, groups, after;
};
SpanParts PartsOf(const PartitionSpan& span) {
  const int64_t begin =
      (int64_t{span.first} + kGroupPartitions - 1) / kGroupPartitions * kGroupPartitions;
  const int64_t end = int64_t{span.end} / kGroupPartitions * kGroupPartitions;
  if (begin >= end) return {span.end - span.first, 0, 0};
  return {static_cast<int32_t>(begin - span.first),
          static_cast<int32_t>((end - begin) / kGroupPartitions),
          static_cast<int32_t>(span.end - end)};
}

// What both operators require of the cache and the heads.
std::string ShapeFault(const KvShape& kv, int32_t num_heads) {
  if (kv.head_dim <= 0 || kv.head_dim > 256 || kv.head_dim % 16 != 0) {
    return absl::StrCat("head_dim is ", kv.head_dim, ", expected a multiple of 16 up to 256");
  }
  if (kv.num_kv_heads <= 0 || num_heads <= 0 || num_heads % kv.num_kv_heads != 0) {
    return absl::StrCat("there are ", num_heads, " heads for ", kv.num_kv_heads,
                        " KV heads, expected a positive multiple");
  }
  return "";
}

// The partitions that rows of a sequence attend to. Without rows, end is 0.
struct Rows {
  int32_t first_position, num_rows;
};
std::string RowsFault(const Rows& rows) {
  if (rows.num_rows <= 0) return absl::StrCat("it has ", rows.num_rows, " rows, expected some");
  if (rows.first_position < 0 || int64_t{rows.first_position} + rows.num_rows > INT32_MAX) {
    return absl::StrCat("its ", rows.num_rows, " rows begin at position ", rows.first_position,
                        ", expected positions of [0, 2^31 - 1)");
  }
  return "";
}
PartitionSpan AttendedBy(const Rows& rows, int32_t sliding_window) {
  int32_t begin = 0;
  if (sliding_window > 0) begin = std::max(0, rows.first_position + 1 - sliding_window);
  const int32_t last = rows.first_position + rows.num_rows - 1;
  return {begin / kPartitionTokens, last / kPartitionTokens + 1};
}

std::string SequenceFault(const PartialsSequence& sequence) {
  const Rows rows = {sequence.first_position, sequence.num_rows};
  std::string fault = RowsFault(rows);
  if (!fault.empty()) return fault;
  const PartitionSpan& span = sequence.span;
  const int32_t end = AttendedBy(rows, 0).end;
  if (span.first < 0 || span.first >= span.end || span.end > end) {
    return absl::StrCat("its span is partitions [", span.first, ", ", span.end,
                        "), expected some of [0, ", end, ")");
  }
  if (sequence.block_table == nullptr || sequence.records == nullptr) {
    return "it has no block table or no place for its records";
  }
  return "";
}

std::string PiecesFault(const MergeSequence& sequence, int32_t sliding_window) {
  const Rows rows = {sequence.first_position, sequence.num_rows};
  std::string fault = RowsFault(rows);
  if (!fault.empty()) return fault;
  const PartitionSpan attended = AttendedBy(rows, sliding_window);
  int64_t next = attended.first;
  for (int32_t i = 0; i < sequence.num_pieces; ++i) {
    const PieceRecords& given = sequence.pieces[i];
    const int32_t first = given.piece.first_partition, count = given.piece.num_partitions;
    const bool group = count == kGroupPartitions && first % kGroupPartitions == 0;
    if (first < 0 || (count != 1 && !group)) {
      return absl::StrCat("piece ", i, " is ", count, " partitions from ", first,
                          ", expected one partition, or the ", kGroupPartitions, " of a group");
    }
    const bool begins_earlier = i == 0 && group && first <= next && next < first + count;
    if (first != next && !begins_earlier) {
      return absl::StrCat("piece ", i, " begins with partition ", first, ", expected ", next);
    }
    if (given.records == nullptr) return absl::StrCat("piece ", i, " has no records");
    next = int64_t{first} + count;
  }
  if (next != attended.end) {
    return absl::StrCat("its pieces end before partition ", next, ", expected ", attended.end);
  }
  return "";
}

void RequireNone(const std::string& fault) {
  if (fault.empty()) return;
  std::fprintf(stderr, "kernel precondition broken: %s\n", fault.c_str());
  std::abort();
}

}  // namespace

int32_t NumPieces(const PartitionSpan& span) {
  const SpanParts parts = PartsOf(span);
  return parts.before + parts.groups + parts.after;
}

AttentionPiece PieceAt(const PartitionSpan& span, int32_t index) {
  const SpanParts parts = PartsOf(span);
  if (index < parts.before) return {span.first + index, 1};
  index -= parts.before;
  const int32_t groups = span.first + parts.before;
  if (index < parts.groups) return {groups + index * kGroupPartitions, kGroupPartitions};
  return {groups + parts.groups * kGroupPartitions + index - parts.groups, 1};
}

std::string FaultOf(const AttentionPartialsArgs& args) {
  std::string fault = ShapeFault(args.layer.shape, args.num_heads);
  if (!fault.empty()) return fault;
  const int64_t row_size = int64_t{args.num_heads} * args.layer.shape.head_dim;
  if (args.q == nullptr || args.q_stride < row_size) {
    return absl::StrCat("rows of q are ", args.q == nullptr ? 0 : args.q_stride,
                        " floats apart, expected at least ", row_size);
  }
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    fault = SequenceFault(args.sequences[s]);
    if (!fault.empty()) return absl::StrCat("sequence ", s, ": ", fault);
  }
  return "";
}

std::string FaultOf(const MergePartialsArgs& args) {
  std::string fault = ShapeFault(args.kv, args.num_heads);
  if (!fault.empty()) return fault;
  const int64_t row_size = int64_t{args.num_heads} * args.kv.head_dim;
  if (args.out_stride < row_size) {
    return absl::StrCat("rows of the output are ", args.out_stride,
                        " elements apart, expected at least ", row_size);
  }
  for (int32_t s = 0; s < args.num_sequences; ++s) {
    fault = PiecesFault(args.sequences[s], args.sliding_window);
    if (!fault.empty()) return absl::StrCat("sequence ", s, ": ", fault);
  }
  return "";
}

void RequireNoFault(const AttentionPartialsArgs& args) { RequireNone(FaultOf(args)); }
void RequireNoFault(const MergePartialsArgs& args) { RequireNone(FaultOf(args)); }

}  // namespace tandem::kernels
