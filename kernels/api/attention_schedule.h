// Cuts a batch's attention into items for the GPU. This is plain host code, tested as such. No
// choice here changes a result bit: every item computes a tile's partitions with the same body, and
// partitions merge in index order whether one item or several walk them.
//
// A tile is 16 (narrow) or 64 (wide) consecutive query vectors of one sequence. With h query heads
// for each KV head, vector v of a KV head is row v / h and query head v % h. A sequence with at
// most 16 vectors gets one narrow tile, and a warp computes each item of it. Long narrow tiles are
// split by partitions (Flash-Decoding), into pieces that differ by one partition at most, until the
// items of a batch take about equal time.
//
// Thread safety: pure functions and plain values. Owner: the caller.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/api/device_attention.h"

namespace tandem::kernels {

struct AttentionScheduleOptions {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t sliding_window = 0;
  int32_t items_wanted = 0;  // narrow items that fill the GPU, over one KV head
  int32_t records_max = 0;   // rows over one partition that the record area holds
};

struct AttentionSequence {
  int32_t first_row = 0;
  int32_t num_rows = 0;
  int32_t first_position = 0;
  int32_t table_offset = 0;
};

struct AttentionSchedule {
  std::vector<AttentionItem> narrow_items;
  std::vector<AttentionItem> wide_items;
  std::vector<AttentionMerge> merges;
};

// What decides how many records a device needs.
struct AttentionRecordNeeds {
  int32_t items_wanted = 0;    // as in AttentionScheduleOptions
  int32_t context_tokens = 0;  // of one sequence
  int64_t kv_token_bytes = 0;  // of one token, in all layers that keep all tokens
  int64_t memory_bytes = 0;    // of the device
};
// Records with which no batch of generated rows leaves a long tile unsplit, as long as each token
// of the device's KV serves two sequences at most. All layers use them, so they take little beside
// the KV: for 32 layers of 32 heads of 128, 8 KV heads in bf16, a thousandth of it.
// REQUIRES: kv_token_bytes > 0; nothing is negative.
int32_t AttentionRecordsMax(const AttentionRecordNeeds& needs);

inline constexpr int32_t kNarrowVectors = 16;
inline constexpr int32_t kWideVectors = 64;

// At most one narrow item for each sequence beside items_wanted. A tile whose records do not fit
// behind those of earlier ones is not split.
AttentionSchedule ScheduleAttention(const AttentionScheduleOptions& options,
                                    const std::vector<AttentionSequence>& sequences);

// Rows of one sequence whose partitions [first_partition, end_partition) are computed here, each to
// a record of its own, so that another node can merge them (kernels/api/attention_partials.h).
// REQUIRES: num_rows rows have at most kNarrowVectors vectors of each KV head; the last partition
// is at most the last row's own.
struct PartialRows {
  int32_t first_row = 0;  // of q
  int32_t num_rows = 0;
  int32_t first_position = 0;  // absolute position of first_row
  // Where block 0 of the sequence would lie in `tables`. Only entries of the partitions are read,
  // so it may be negative.
  int32_t table_offset = 0;
  int32_t first_partition = 0;
  int32_t end_partition = 0;
  int32_t first_record = 0;  // of first_partition and first_row; one for each row follows it
};
// Narrow items that together leave all records, in pieces of about equal length, as many as
// options.items_wanted asks for. REQUIRES: no sliding window.
std::vector<AttentionItem> SchedulePartials(const AttentionScheduleOptions& options,
                                            const std::vector<PartialRows>& rows);

}  // namespace tandem::kernels
