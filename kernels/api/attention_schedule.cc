#include "kernels/api/attention_schedule.h"

#include <algorithm>

#include "kernels/api/attention.h"

namespace tandem::kernels {
namespace {

// The partitions that any row of a tile attends to.
struct PartitionRange {
  int32_t first, end;
};

PartitionRange PartitionsOf(const AttentionSequence& sequence, int32_t first_row, int32_t end_row,
                            int32_t sliding_window) {
  const int32_t lowest = sequence.first_position + first_row;
  const int32_t highest = sequence.first_position + end_row - 1;
  const int32_t begin = sliding_window > 0 ? std::max(0, lowest + 1 - sliding_window) : 0;
  return {begin / kPartitionTokens, highest / kPartitionTokens + 1};
}

class Scheduler {
 public:
  Scheduler(const AttentionScheduleOptions& options,
            const std::vector<AttentionSequence>& sequences)
      : options_(options),
        heads_per_kv_(options.num_heads / options.num_kv_heads),
        sequences_(sequences) {}

  AttentionSchedule Run() {
    int64_t narrow_partitions = 0;
    for (const AttentionSequence& sequence : sequences_) {
      if (!IsNarrow(sequence)) continue;
      const PartitionRange range =
          PartitionsOf(sequence, 0, sequence.num_rows, options_.sliding_window);
      narrow_partitions += range.end - range.first;
    }
    const int64_t wanted = std::max(1, options_.items_wanted);
    longest_item_ = std::max<int64_t>(1, (narrow_partitions + wanted - 1) / wanted);
    for (const AttentionSequence& sequence : sequences_) AddSequence(sequence);
    return std::move(schedule_);
  }

 private:
  bool IsNarrow(const AttentionSequence& sequence) const {
    return int64_t{sequence.num_rows} * heads_per_kv_ <= kNarrowVectors;
  }

  void AddSequence(const AttentionSequence& sequence) {
    if (sequence.num_rows == 0) return;
    const int32_t vectors = sequence.num_rows * heads_per_kv_;
    const int32_t tile = IsNarrow(sequence) ? kNarrowVectors : kWideVectors;
    for (int32_t first = 0; first < vectors; first += tile) {
      const int32_t last = std::min(first + tile, vectors) - 1;
      const PartitionRange range = PartitionsOf(sequence, first / heads_per_kv_,
                                                last / heads_per_kv_ + 1, options_.sliding_window);
      AttentionItem item;
      item.first_row = sequence.first_row;
      item.num_rows = sequence.num_rows;
      item.first_position = sequence.first_position;
      item.first_vector = first;
      item.table_offset = sequence.table_offset;
      item.first_partition = range.first;
      item.end_partition = range.end;
      if (IsNarrow(sequence)) {
        AddNarrow(item);
      } else {
        schedule_.wide_items.push_back(item);
      }
    }
  }

  void AddNarrow(AttentionItem item) {
    const int64_t partitions = item.end_partition - item.first_partition;
    const int64_t records = partitions * item.num_rows;
    if (partitions <= longest_item_ || next_record_ + records > options_.records_max) {
      schedule_.narrow_items.push_back(item);
      return;
    }
    schedule_.merges.push_back(
        {item.first_row, item.num_rows, next_record_, static_cast<int32_t>(partitions)});
    const int64_t pieces = (partitions + longest_item_ - 1) / longest_item_;
    const int32_t first = item.first_partition;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      item.first_partition = first + static_cast<int32_t>(partitions * piece / pieces);
      item.end_partition = first + static_cast<int32_t>(partitions * (piece + 1) / pieces);
      item.first_record = next_record_ + (item.first_partition - first) * item.num_rows;
      schedule_.narrow_items.push_back(item);
    }
    next_record_ += static_cast<int32_t>(records);
  }

  const AttentionScheduleOptions options_;
  const int32_t heads_per_kv_;
  const std::vector<AttentionSequence>& sequences_;
  AttentionSchedule schedule_;
  int64_t longest_item_ = 1;  // partitions of a split tile's item
  int32_t next_record_ = 0;
};

}  // namespace

int32_t AttentionRecordsMax(const AttentionRecordNeeds& needs) {
  const auto partitions_of = [](int64_t tokens) {
    return (tokens + kPartitionTokens - 1) / kPartitionTokens;
  };
  // Fewer tiles than items are split: each has more than an item's share of the partitions.
  const int64_t split =
      std::max<int64_t>(0, int64_t{needs.items_wanted} - 1) * partitions_of(needs.context_tokens);
  const int64_t held =
      split == 0 ? 0 : partitions_of(needs.memory_bytes / needs.kv_token_bytes) * 2;
  return static_cast<int32_t>(std::min({split, held, int64_t{1} << 30}));
}

AttentionSchedule ScheduleAttention(const AttentionScheduleOptions& options,
                                    const std::vector<AttentionSequence>& sequences) {
  return Scheduler(options, sequences).Run();
}

std::vector<AttentionItem> SchedulePartials(const AttentionScheduleOptions& options,
                                            const std::vector<PartialRows>& rows) {
  int64_t partitions = 0;
  for (const PartialRows& part : rows) partitions += part.end_partition - part.first_partition;
  const int64_t wanted = std::max(1, options.items_wanted);
  const int64_t longest = std::max<int64_t>(1, (partitions + wanted - 1) / wanted);
  std::vector<AttentionItem> items;
  for (const PartialRows& part : rows) {
    const int64_t count = part.end_partition - part.first_partition;
    const int64_t pieces = (count + longest - 1) / longest;
    for (int64_t piece = 0; piece < pieces; ++piece) {
      AttentionItem item;
      item.first_row = part.first_row;
      item.num_rows = part.num_rows;
      item.first_position = part.first_position;
      item.table_offset = part.table_offset;
      item.first_partition = part.first_partition + static_cast<int32_t>(count * piece / pieces);
      item.end_partition =
          part.first_partition + static_cast<int32_t>(count * (piece + 1) / pieces);
      item.first_record =
          part.first_record + (item.first_partition - part.first_partition) * part.num_rows;
      items.push_back(item);
    }
  }
  return items;
}

}  // namespace tandem::kernels
