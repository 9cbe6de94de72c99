// Attention in two steps, so that several nodes can share the work of one row. The first step
// attends to some partitions of a sequence and gives records. The second merges all records of a
// row into the output that attention.h gives, to the bit.
//
// Why the bits agree: plain attention also computes each partition of 256 tokens apart. It folds
// the 16 partitions of a group in index order, and then the groups in index order. Partitions and
// groups are places in the sequence. So it does not matter which node computed a record, and a
// record of a whole group can stand for the 16 records of its partitions.
//
// A piece is what one record covers: one partition, or one whole group. A record is (m, l, o) of
// one row and head over the piece: head_dim + 2 floats, m, then l, then o[head_dim]. m is the
// largest score, l = Σ e^(s − m), o = Σ e^(s − m)·v. (Where a class computes scores with log2 e in
// q, m is a base-2 logarithm.) A row that attends to no token of the piece has a record of zeros:
// l = 0 says so. Only backends with the same numerics id understand each other's records.
//
// Wire format: records as they lie in memory, little-endian fp32, [rows][heads][head_dim + 2] for
// each piece, pieces ascending. One piece of one generated row has PieceBytes(1, heads, head_dim)
// bytes: 16,640 with 32 heads of 128.
//
// With a sliding window, partitions and groups stay absolute places. Tokens outside the window take
// no part, so a group may consist of the partitions that the window reaches.
//
// Thread safety: the calling thread and the threads of `parallel`; calls that write different
// records, outputs and scratch may run at once. Owner: the caller owns all memory. Errors: a broken
// REQUIRES ends the process with FaultOf's message. A caller that takes sizes or pieces from a peer
// calls FaultOf first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/api/attention.h"

namespace tandem::kernels {

// Partitions [first, end) of a sequence.
struct PartitionSpan {
  int32_t first = 0;
  int32_t end = 0;
};

struct AttentionPiece {
  int32_t first_partition = 0;
  int32_t num_partitions = 1;  // 1, or kGroupPartitions at a multiple of it
};

// A span is cut into as few pieces as there can be: each whole group is one piece, and each other
// partition is one. REQUIRES: 0 <= span.first <= span.end, and index < NumPieces(span).
int32_t NumPieces(const PartitionSpan& span);
AttentionPiece PieceAt(const PartitionSpan& span, int32_t index);

constexpr int64_t RecordFloats(int32_t head_dim) { return int64_t{head_dim} + 2; }
// Bytes of the records of one piece.
constexpr int64_t PieceBytes(int32_t rows, int32_t heads, int32_t head_dim) {
  return int64_t{rows} * heads * RecordFloats(head_dim) * 4;
}

// Consecutive rows of one sequence and the partitions that they meet here.
// REQUIRES: the span ends at or before the partition after the last row's own.
struct PartialsSequence {
  // Begins with the span: the block of tokens [256·span.first + i·block_tokens, …) is
  // block_table[i]. Entries of blocks that no row may look at are never read.
  const int32_t* block_table = nullptr;
  int32_t first_row = 0;  // of q
  int32_t num_rows = 0;
  int32_t first_position = 0;  // absolute position of first_row
  PartitionSpan span;
  float* records = nullptr;  // [NumPieces(span)][num_rows][num_heads][head_dim + 2]
};

struct AttentionPartialsArgs {
  const float* q = nullptr;  // [rows][q_stride], as AttentionArgs::q: after norms and RoPE
  int64_t q_stride = 0;
  int32_t num_heads = 0;  // a multiple of num_kv_heads
  float scale = 0;
  int32_t sliding_window = 0;  // 0 = all
  KvLayer layer;
  const PartialsSequence* sequences = nullptr;  // [num_sequences]
  int32_t num_sequences = 0;
  void* scratch = nullptr;  // [PartialsScratchBytes(...)], 64-byte boundary
  size_t scratch_bytes = 0;
};
using AttentionPartialsFn = void (*)(const AttentionPartialsArgs& args,
                                     const ParallelFor& parallel);

// The largest call a scratch area must serve. It does not grow with rows or partitions.
struct PartialsLimits {
  int32_t num_heads = 0;
  KvShape kv;
  int32_t max_sequences = 0;
  int32_t num_workers = 1;
};
size_t PartialsScratchBytes(const PartialsLimits& limits);

struct PieceRecords {
  AttentionPiece piece;
  const float* records = nullptr;  // [num_rows][num_heads][head_dim + 2]
};

// All records of some rows. REQUIRES: pieces ascend without a gap, from the first partition that
// the first row attends to (or a group that holds it) to the last row's own partition.
struct MergeSequence {
  const PieceRecords* pieces = nullptr;  // [num_pieces]
  int32_t num_pieces = 0;
  int32_t first_row = 0;  // of the output
  int32_t num_rows = 0;
  int32_t first_position = 0;
};

struct MergePartialsArgs {
  KvShape kv;  // of the cache that gave the records: its type decides how they merge
  int32_t num_heads = 0;
  int32_t sliding_window = 0;
  const MergeSequence* sequences = nullptr;  // [num_sequences]
  int32_t num_sequences = 0;
  float* out = nullptr;  // [rows][out_stride], num_heads · head_dim written
  int64_t out_stride = 0;
  uint16_t* out_bf16 = nullptr;  // instead of `out`, rounded to nearest even
};
using MergePartialsFn = void (*)(const MergePartialsArgs& args, const ParallelFor& parallel);

// Which REQUIRES a call breaks, by sequence and value; "" for none.
std::string FaultOf(const AttentionPartialsArgs& args);
std::string FaultOf(const MergePartialsArgs& args);
// Ends the process with FaultOf's message, if there is one. For backends.
void RequireNoFault(const AttentionPartialsArgs& args);
void RequireNoFault(const MergePartialsArgs& args);

}  // namespace tandem::kernels
