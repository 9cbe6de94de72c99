// When a node tries to reach a router that is away: often at first, for requests wait at a router
// that was started again for its nodes, and less often once it stays away.
// Thread safety: none.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace tandem::rpc {

class ReconnectPace {
 public:
  static constexpr absl::Duration kFirst = absl::Milliseconds(100);
  static constexpr absl::Duration kOften = absl::Milliseconds(250);
  // How long the router is looked for often.
  static constexpr absl::Duration kSoon = absl::Seconds(15);
  static constexpr absl::Duration kSeldom = absl::Seconds(2);

  bool Due(absl::Time now) const { return now >= next_; }
  void Tried(absl::Time now) {
    away_since_ = std::min(away_since_, now);
    next_ = now + wait_;
    wait_ = std::min(2 * wait_, now - away_since_ < kSoon ? kOften : kSeldom);
  }
  // The router is there.
  void Heard() {
    wait_ = kFirst;
    away_since_ = absl::InfiniteFuture();
  }

 private:
  absl::Time next_ = absl::InfinitePast();
  absl::Duration wait_ = kFirst;
  absl::Time away_since_ = absl::InfiniteFuture();  // of the first try since the router was heard
};

}  // namespace tandem::rpc
