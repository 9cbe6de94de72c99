// When a node reports to its routers: as often as the one that asks most often wants it, from the
// moment it asks.
// Thread safety: none.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace tandem::node {

class HeartbeatPace {
 public:
  static constexpr absl::Duration kMin = absl::Milliseconds(50);

  // `interval`: until a router asks.
  explicit HeartbeatPace(absl::Duration interval) : interval_(interval) {}

  void Ask(absl::Duration interval, absl::Time now) {
    interval = std::max(interval, kMin);
    interval_ = asked_ ? std::min(interval_, interval) : interval;
    asked_ = true;
    // The report that is planned already may be later than the router waits.
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
