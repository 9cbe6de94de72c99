// The prompts that a router has given to one node and that the node has not computed yet, as
// predicted time. The node is taken to compute them one after the other, so the first one's time
// passes while it runs.
// Thread safety: none; the Fleet owns it, one for each node. Units: microseconds.
// Invariants: 0 without prompts, however the figures were rounded.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace tandem::router {

class PromptWork {
 public:
  void Add(double us, absl::Time now) {
    if (prompts_++ == 0) first_since_ = now;
    us_ += us;
  }
  // REQUIRES: Add(us) before.
  void Remove(double us, absl::Time now) {
    us_ = --prompts_ == 0 ? 0 : std::max(0.0, us_ - us);
    first_since_ = now;
  }
  int64_t prompts() const { return prompts_; }
  // Of all prompts, the computed part of the first one included.
  double us() const { return us_; }
  // Less what the first one, taken to be as long as the mean, has run. It is never done before the
  // node says so.
  double RemainingUs(absl::Time now) const {
    if (prompts_ == 0) return 0;
    const double ran = std::max(0.0, absl::ToDoubleMicroseconds(now - first_since_));
    return us_ - std::min(ran, us_ / static_cast<double>(prompts_));
  }

 private:
  int64_t prompts_ = 0;
  double us_ = 0;
  absl::Time first_since_ = absl::InfinitePast();
};

}  // namespace tandem::router
