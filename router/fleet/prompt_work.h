// The prompts that a router has given to one node and that the node has not computed yet, as
// predicted time. The node is taken to compute them one after the other, so the first one's time
// passes while it runs.
// Thread safety: none; the Fleet owns it, one for each node. Units: microseconds.
// Invariants: 0 without prompts, however the figures were rounded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/container/btree_map.h"
#include "absl/time/time.h"

namespace tandem::router {

class PromptWork {
 public:
  // `due`: of the first token; infinite = no time is set.
  void Add(double us, absl::Time now, absl::Time due = absl::InfiniteFuture()) {
    if (prompts_++ == 0) first_since_ = now;
    us_ += us;
    Part& part = by_due_[due];
    ++part.prompts;
    part.us += us;
  }
  // REQUIRES: Add(us, due) before.
  void Remove(double us, absl::Time now, absl::Time due = absl::InfiniteFuture()) {
    us_ = --prompts_ == 0 ? 0 : std::max(0.0, us_ - us);
    first_since_ = now;
    const auto part = by_due_.find(due);
    if (part == by_due_.end()) return;
    part->second.us -= us;
    if (--part->second.prompts == 0) by_due_.erase(part);
  }
  int64_t prompts() const { return prompts_; }
  // Of all prompts, the computed part of the first one included.
  double us() const { return us_; }
  // Less what the first one, taken to be as long as the mean, has run. It is never done before the
  // node says so. Without the prompts that are due after `due`: nodes compute them later.
  double RemainingUs(absl::Time now, absl::Time due = absl::InfiniteFuture()) const {
    if (prompts_ == 0) return 0;
    const double ran = std::max(0.0, absl::ToDoubleMicroseconds(now - first_since_));
    double later = 0;
    for (auto it = by_due_.upper_bound(due); it != by_due_.end(); ++it) later += it->second.us;
    return std::max(0.0, us_ - later - std::min(ran, us_ / static_cast<double>(prompts_)));
  }

 private:
  struct Part {
    int64_t prompts = 0;
    double us = 0;
  };

  int64_t prompts_ = 0;
  double us_ = 0;
  absl::btree_map<absl::Time, Part> by_due_;  // bound: the prompts
  absl::Time first_since_ = absl::InfinitePast();
};

}  // namespace tandem::router
