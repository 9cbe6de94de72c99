// When a node tries to reach a router that it has lost. A restarted router holds requests that wait
// for its nodes, so the node first tries often. If the router stays away it tries less often.
// Thread safety: none; its owner locks.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace tandem::rpc {

class ReconnectPace {
 public:
  // The wait after the first try; it doubles with each further one.
  static constexpr absl::Duration kFirstWait = absl::Milliseconds(100);
  // The longest wait during the first kShortWaitsFor, and after that.
  static constexpr absl::Duration kShortWaitMax = absl::Milliseconds(250);
  static constexpr absl::Duration kLongWaitMax = absl::Seconds(2);
  static constexpr absl::Duration kShortWaitsFor = absl::Seconds(15);

  // Whether the node should try now.
  bool Due(absl::Time now) const { return now >= next_; }
  // Reports that the node tries at `now`.
  void OnTry(absl::Time now) {
    away_since_ = std::min(away_since_, now);
    next_ = now + wait_;
    wait_ = std::min(2 * wait_, now - away_since_ < kShortWaitsFor ? kShortWaitMax : kLongWaitMax);
  }
  // Reports that a message came from the router.
  void OnMessage() {
    wait_ = kFirstWait;
    away_since_ = absl::InfiniteFuture();
  }

 private:
  absl::Time next_ = absl::InfinitePast();
  absl::Duration wait_ = kFirstWait;
  absl::Time away_since_ = absl::InfiniteFuture();  // the first try since the last message
};

}  // namespace tandem::rpc
