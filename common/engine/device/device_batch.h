// A step's inputs on the device: tokens, positions, cache slots, block tables and the attention
// schedule, packed in pinned host memory and sent by one copy. Every array keeps its device address
// from step to step, so that a captured graph reads the next step's.
// Thread safety: one thread. Owner: the device forward pass.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/engine/engine.h"
#include "kernels/api/attention_schedule.h"
#include "kernels/api/device.h"
#include "kernels/api/device_attention.h"

namespace tandem::engine {

// The largest step that a batch can hold.
struct DeviceBatchLimits {
  int32_t rows = 0;
  int32_t logit_rows = 0;
  int32_t table_entries = 0;  // of all sequences' block tables

  // Those that hold what either of the two holds; and, where block tables need more than these,
  // twice as many entries. Tables grow by an entry now and then, and each growth moves the buffers.
  DeviceBatchLimits GrownFor(const DeviceBatchLimits& needs) const {
    constexpr int32_t kTableEntriesMin = 4096;
    DeviceBatchLimits grown = With(needs);
    if (needs.table_entries > table_entries)
      grown.table_entries = std::max({needs.table_entries, 2 * table_entries, kTableEntriesMin});
    return grown;
  }
  // Those that hold what either of the two holds.
  DeviceBatchLimits With(const DeviceBatchLimits& other) const {
    return {std::max(rows, other.rows), std::max(logit_rows, other.logit_rows),
            std::max(table_entries, other.table_entries)};
  }
};

struct DeviceBatchOptions {
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t block_tokens = 0;
  int32_t attention_items = 1;   // narrow items that the device computes at a time
  int32_t records_max = 0;       // AttentionScheduleOptions::records_max
  std::vector<int32_t> windows;  // the distinct sliding windows of the model's layers
};

class DeviceBatch {
 public:
  explicit DeviceBatch(DeviceBatchOptions options) : options_(std::move(options)) {}

  // Allocates buffers for `limits` in the place of the old ones, which are freed first: both
  // together need not fit. Errors: the device's; the batch then holds no step.
  absl::Status Reserve(const DeviceBatchLimits& limits, kernels::Device& device);
  // Frees the buffers.
  void Release();
  // The limits that `slices` need.
  static DeviceBatchLimits Needs(absl::Span<const SequenceSlice> slices);
  bool Fits(const DeviceBatchLimits& limits) const;
  const DeviceBatchLimits& limits() const { return limits_; }
  int64_t bytes() const { return static_cast<int64_t>(device_.bytes()); }

  // Packs `slices` and enqueues the copy. Rows from the last to `padded_rows` are padding: token 0,
  // no cache slot. The previous step's copy must be done. REQUIRES: Fits.
  void Fill(absl::Span<const SequenceSlice> slices, int32_t padded_rows,
            kernels::DeviceStream& stream);

  int32_t rows() const { return rows_; }  // without padding
  int32_t num_logit_rows() const { return num_logit_rows_; }

  const int32_t* tokens() const { return at<int32_t>(tokens_); }
  const int32_t* positions() const { return at<int32_t>(positions_); }
  const int64_t* slots() const { return at<int64_t>(slots_); }
  const int32_t* logit_rows() const { return at<int32_t>(logit_rows_); }
  // Sets the schedule's fields of `args` for windows[index]: device addresses, and in `launch` as
  // many blocks as this step needs.
  void SetSchedule(size_t index, kernels::DeviceAttentionArgs* args) const;
  // `launch` for any step of `rows` rows of one token each.
  kernels::AttentionCounts DecodeLaunch(int32_t rows) const;

 private:
  // Offsets of the arrays of one window's schedule.
  struct ScheduleSection {
    size_t counts = 0, narrow = 0, wide = 0, merges = 0;
    kernels::AttentionCounts current;
  };

  template <typename T>
  const T* at(size_t offset) const {
    return reinterpret_cast<const T*>(device_.data() + offset);
  }
  template <typename T>
  T* host(size_t offset) {
    return reinterpret_cast<T*>(host_.data() + offset);
  }
  int32_t ItemsWanted() const;
  void FillRows(absl::Span<const SequenceSlice> slices, int32_t padded_rows);
  // `here`: those whose KV all lies here. The others have lent KV, and take part in windowed layers
  // only: DeviceLentAttention serves them elsewhere.
  void FillSchedules(const std::vector<kernels::AttentionSequence>& sequences,
                     const std::vector<kernels::AttentionSequence>& here);

  const DeviceBatchOptions options_;
  DeviceBatchLimits limits_;  // that the buffers hold
  kernels::DeviceBuffer host_, device_;
  size_t tokens_ = 0, positions_ = 0, slots_ = 0, logit_rows_ = 0, tables_ = 0;
  std::vector<ScheduleSection> schedules_;  // [windows]
  int32_t rows_ = 0;
  int32_t num_logit_rows_ = 0;
};

}  // namespace tandem::engine
