// Durations of any number of events in a fixed amount of memory: counts by length, in steps of
// less than 1 %.
// Thread safety: none.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::sim {

class LatencyHistogram {
 public:
  void Add(absl::Duration duration) {
    Count(absl::ToInt64Nanoseconds(duration));
    sum_ += duration;
    max_ = std::max(max_, duration);
  }
  // As Add of each. REQUIRES: together they are shorter than 292 years.
  void AddAll(absl::Span<const int64_t> durations_ns) {
    int64_t sum = 0, longest = 0;
    for (const int64_t ns : durations_ns) {
      Count(ns);
      sum += ns;
      longest = std::max(longest, ns);
    }
    sum_ += absl::Nanoseconds(sum);
    max_ = std::max(max_, absl::Nanoseconds(longest));
  }
  int64_t count() const { return count_; }
  double mean_ms() const {
    return count_ > 0 ? absl::ToDoubleMilliseconds(sum_) / static_cast<double>(count_) : 0;
  }
  double max_ms() const { return absl::ToDoubleMilliseconds(max_); }
  // The shortest length that `percent` of all do not exceed, within 1 %; 0 of none.
  double PercentileMs(double percent) const {
    const auto rank = static_cast<int64_t>(percent / 100 * static_cast<double>(count_) + 0.999999);
    int64_t below = 0;
    for (size_t i = 0; i < counts_.size(); ++i) {
      below += counts_[i];
      if (counts_[i] > 0 && below >= rank) return std::min(MiddleNs(i) / 1e6, max_ms());
    }
    return 0;
  }

 private:
  // 128 steps for each power of two.
  static constexpr int kStepBits = 7;
  static constexpr size_t kSteps = size_t{1} << kStepBits;

  void Count(int64_t ns) {
    ++counts_[IndexOf(static_cast<uint64_t>(std::max<int64_t>(0, ns)))];
    ++count_;
  }
  static size_t IndexOf(uint64_t ns) {
    if (ns < kSteps) return static_cast<size_t>(ns);
    const int shift = std::bit_width(ns) - 1 - kStepBits;
    return (static_cast<size_t>(shift) + 1) * kSteps + static_cast<size_t>(ns >> shift) - kSteps;
  }
  static double MiddleNs(size_t index) {
    if (index < kSteps) return static_cast<double>(index);
    const size_t shift = index / kSteps - 1;
    const double step = static_cast<double>(uint64_t{1} << shift);
    return (static_cast<double>(index % kSteps + kSteps) + 0.5) * step;
  }

  std::array<int64_t, 58 * kSteps> counts_{};
  int64_t count_ = 0;
  absl::Duration sum_, max_;
};

}  // namespace tandem::sim
