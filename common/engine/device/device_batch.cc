#include "common/engine/device/device_batch.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/engine/slice_check.h"
#include "kernels/api/device_attention.h"

namespace tandem::engine {

using kernels::DeviceBuffer;

DeviceBatchLimits DeviceBatch::Needs(absl::Span<const SequenceSlice> slices) {
  DeviceBatchLimits needs;
  for (const SequenceSlice& slice : slices) {
    needs.rows += static_cast<int32_t>(slice.num_new);
    needs.logit_rows += slice.sample ? 1 : 0;
    needs.table_entries += static_cast<int32_t>(slice.blocks.size());
  }
  return needs;
}

bool DeviceBatch::Fits(const DeviceBatchLimits& limits) const {
  return limits.rows <= limits_.rows && limits.logit_rows <= limits_.logit_rows &&
         limits.table_entries <= limits_.table_entries;
}

absl::Status DeviceBatch::Reserve(const DeviceBatchLimits& limits, kernels::Device& device) {
  Release();
  size_t bytes = 0;
  const auto section = [&bytes](int64_t count, size_t size) {
    const size_t begin = bytes;
    bytes = (bytes + static_cast<size_t>(count) * size + 255) / 256 * 256;
    return begin;
  };
  const int64_t rows = limits.rows;
  const int64_t heads_per_kv = options_.num_heads / options_.num_kv_heads;
  tokens_ = section(rows, sizeof(int32_t));
  positions_ = section(rows, sizeof(int32_t));
  slots_ = section(rows, sizeof(int64_t));
  logit_rows_ = section(limits.logit_rows, sizeof(int32_t));
  schedules_.clear();
  for (size_t i = 0; i < options_.windows.size(); ++i) {
    ScheduleSection s;
    s.counts = section(1, sizeof(kernels::AttentionCounts));
    // At most one tile for each row.
    s.narrow = section(rows + ItemsWanted(), sizeof(kernels::AttentionItem));
    s.wide =
        section(rows * heads_per_kv / kernels::kWideVectors + rows, sizeof(kernels::AttentionItem));
    s.merges = section(rows, sizeof(kernels::AttentionMerge));
    schedules_.push_back(s);
  }
  tables_ = section(limits.table_entries, sizeof(int32_t));
  ASSIGN_OR_RETURN(host_, device.Allocate(DeviceBuffer::Kind::kPinnedHost, bytes));
  ASSIGN_OR_RETURN(device_, device.Allocate(DeviceBuffer::Kind::kDevice, bytes));
  limits_ = limits;
  return absl::OkStatus();
}

void DeviceBatch::Release() {
  limits_ = {};
  host_ = DeviceBuffer();
  device_ = DeviceBuffer();
}

int32_t DeviceBatch::ItemsWanted() const {
  return std::max(1, options_.attention_items / options_.num_kv_heads);
}

kernels::AttentionCounts DeviceBatch::DecodeLaunch(int32_t rows) const {
  // Splitting leaves at most one short item for each tile beside the wanted number of full ones.
  return {ItemsWanted() + rows, 0, rows};
}

void DeviceBatch::FillRows(absl::Span<const SequenceSlice> slices, int32_t padded_rows) {
  int32_t row = 0;
  num_logit_rows_ = 0;
  for (const SequenceSlice& slice : slices) {
    const int64_t end = slice.num_computed + slice.num_new;
    for (int64_t i = slice.num_computed; i < end; ++i, ++row) {
      host<int32_t>(tokens_)[row] = slice.tokens[static_cast<size_t>(i)];
      host<int32_t>(positions_)[row] = static_cast<int32_t>(i);
      const BlockId block = slice.blocks[static_cast<size_t>(i / options_.block_tokens)];
      host<int64_t>(slots_)[row] =
          int64_t{block.value()} * options_.block_tokens + i % options_.block_tokens;
    }
    if (slice.sample) host<int32_t>(logit_rows_)[num_logit_rows_++] = row - 1;
  }
  rows_ = row;
  for (; row < padded_rows; ++row) {
    host<int32_t>(tokens_)[row] = 0;
    host<int32_t>(positions_)[row] = 0;
    host<int64_t>(slots_)[row] = -1;
  }
  // A graph computes logits for as many rows as it was captured with.
  for (int32_t i = num_logit_rows_; i < std::min(padded_rows, limits_.logit_rows); ++i) {
    host<int32_t>(logit_rows_)[i] = 0;
  }
}

void DeviceBatch::FillSchedules(const std::vector<kernels::AttentionSequence>& sequences,
                                const std::vector<kernels::AttentionSequence>& here) {
  for (size_t i = 0; i < schedules_.size(); ++i) {
    const kernels::AttentionSchedule schedule =
        kernels::ScheduleAttention({options_.num_heads, options_.num_kv_heads, options_.windows[i],
                                    ItemsWanted(), options_.records_max},
                                   options_.windows[i] > 0 ? sequences : here);
    ScheduleSection& section = schedules_[i];
    section.current = {static_cast<int32_t>(schedule.narrow_items.size()),
                       static_cast<int32_t>(schedule.wide_items.size()),
                       static_cast<int32_t>(schedule.merges.size())};
    *host<kernels::AttentionCounts>(section.counts) = section.current;
    std::copy(schedule.narrow_items.begin(), schedule.narrow_items.end(),
              host<kernels::AttentionItem>(section.narrow));
    std::copy(schedule.wide_items.begin(), schedule.wide_items.end(),
              host<kernels::AttentionItem>(section.wide));
    std::copy(schedule.merges.begin(), schedule.merges.end(),
              host<kernels::AttentionMerge>(section.merges));
  }
}

void DeviceBatch::Fill(absl::Span<const SequenceSlice> slices, int32_t padded_rows,
                       kernels::DeviceStream& stream) {
  TANDEM_CHECK(Fits(Needs(slices)) && padded_rows <= limits_.rows, "rows beyond the reserved ",
               limits_.rows);
  FillRows(slices, padded_rows);
  std::vector<kernels::AttentionSequence> sequences, here;
  int32_t row = 0, entries = 0;
  for (const SequenceSlice& slice : slices) {
    sequences.push_back({row, static_cast<int32_t>(slice.num_new),
                         static_cast<int32_t>(slice.num_computed), entries});
    if (!HasLent(slice)) here.push_back(sequences.back());
    row += static_cast<int32_t>(slice.num_new);
    for (BlockId block : slice.blocks) host<int32_t>(tables_)[entries++] = block.value();
  }
  FillSchedules(sequences, here);
  stream.CopyIn(device_.data(), host_.data(),
                tables_ + static_cast<size_t>(entries) * sizeof(int32_t));
}

void DeviceBatch::SetSchedule(size_t index, kernels::DeviceAttentionArgs* args) const {
  const ScheduleSection& section = schedules_[index];
  args->tables = at<int32_t>(tables_);
  args->narrow_items = at<kernels::AttentionItem>(section.narrow);
  args->wide_items = at<kernels::AttentionItem>(section.wide);
  args->merges = at<kernels::AttentionMerge>(section.merges);
  args->counts = at<kernels::AttentionCounts>(section.counts);
  args->launch = section.current;
}

}  // namespace tandem::engine
