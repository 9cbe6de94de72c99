// How a batch's attention is cut into items for the GPU: plain host code, tested as such. Nothing
// here changes a result bit: a tile's partitions are computed by the same body wherever they run,
// and merge in index order whether one item walks them or many.
//
// A tile is 16 (narrow) or 64 (wide) consecutive query vectors of one sequence, vector v being row
// v / h and query head v % h of each KV head, h query heads sharing a KV head. Sequences with at
// most 16 vectors get a narrow tile: a warp for each item. Long narrow tiles are split by
// partitions (Flash-Decoding) until the items of a batch are about equal.
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
  int32_t records_max = 0;   // tile partitions the record area holds
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

inline constexpr int32_t kNarrowVectors = 16;
inline constexpr int32_t kWideVectors = 64;

AttentionSchedule ScheduleAttention(const AttentionScheduleOptions& options,
                                    const std::vector<AttentionSequence>& sequences);

}  // namespace tandem::kernels
