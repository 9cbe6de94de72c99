// When a node sends load reports to its routers: at the shortest interval that any router asked
// for, starting with the request. Thread safety: none; the owner guards it. Owner: NodeRuntime.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace tandem::node {

class HeartbeatPace {
 public:
  static constexpr absl::Duration kMin = absl::Milliseconds(50);

  // `interval`: used until a router asks for another.
  explicit HeartbeatPace(absl::Duration interval) : interval_(interval) {}

  // A router asks for reports at least every `interval`; below kMin it gets kMin.
  void RequestInterval(absl::Duration interval, absl::Time now) {
    interval = std::max(interval, kMin);
    interval_ = asked_ ? std::min(interval_, interval) : interval;
    asked_ = true;
    // The report that is already planned may come later than the router wants.
    next_ = std::min(next_, now + interval_);
  }
  // Whether a report is due; the next one is an interval later.
  bool TakeDue(absl::Time now) {
    if (now < next_) return false;
    next_ = now + interval_;
    return true;
  }

 private:
  absl::Duration interval_;
  bool asked_ = false;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace tandem::node
