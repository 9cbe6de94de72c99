// The total length of a union of time intervals: for how long at least one of several overlapping
// operations was running. Memory: one entry for each gap. Thread safety: none; one thread at a
// time.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/time.h"

namespace tandem::transfer {

class BusyTime {
 public:
  // REQUIRES: began <= ended, and `ended` is not before that of an earlier call.
  void Add(absl::Time began, absl::Time ended) {
    while (!stretches_.empty() && began <= stretches_.back().second) {
      began = std::min(began, stretches_.back().first);
      total_ -= stretches_.back().second - stretches_.back().first;
      stretches_.pop_back();
    }
    stretches_.emplace_back(began, ended);
    total_ += ended - began;
  }
  absl::Duration total() const { return total_; }
  // The part of the total that lies after `time`.
  absl::Duration TotalAfter(absl::Time time) const {
    absl::Duration after;
    for (auto it = stretches_.rbegin(); it != stretches_.rend() && it->second > time; ++it) {
      after += it->second - std::max(it->first, time);
    }
    return after;
  }

 private:
  // Bound: the data frames of one lease.
  std::vector<std::pair<absl::Time, absl::Time>> stretches_;  // apart, in order
  absl::Duration total_;
};

}  // namespace tandem::transfer
