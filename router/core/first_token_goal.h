// When a request's first token is wanted (--ttft-slo), and whether that can still be met. A request
// that cannot meet it any more is late: it waits behind those that can. So a router that gets more
// than its nodes can compute answers what it can in time, and a burst is still answered whole.
//
// Thread safety: none; a SequenceMachine owns it, on the core's strand.
#pragma once

#include <algorithm>

#include "absl/time/time.h"

namespace tandem::router {

class FirstTokenGoal {
 public:
  // Placements aim at this share of the limit: predictions err.
  static constexpr double kAimedShare = 0.9;
  // A first token takes this share of its predicted time at least, as far as is certain. Requests
  // are refused only if that is too long.
  static constexpr double kCertainShare = 0.8;

  // `limit`: 0 = no goal.
  FirstTokenGoal(absl::Duration limit, absl::Time submitted)
      : limit_(limit > absl::ZeroDuration() ? limit : absl::InfiniteDuration()),
        submitted_(submitted) {}

  bool late() const { return late_; }
  void SetLate() { late_ = true; }
  // Another sequence of the request has its first token.
  void SetMet() { met_ = true; }

  // From now, for a placement to aim at.
  absl::Duration Left(absl::Time now) const {
    return late_ || met_ ? absl::InfiniteDuration() : kAimedShare * limit_ - (now - submitted_);
  }
  // Whether the goal cannot be met any more. `fastest`: the first token's time from now if no
  // prompt waited before this one.
  bool OutOfReach(absl::Duration fastest, absl::Time now) const { return fastest > Left(now); }
  // Whether a first token after `predicted` from now is too late, beyond the model's error. Never
  // of a late request: it is served.
  bool SurelyMissed(absl::Duration predicted, absl::Time now) const {
    return !late_ && !met_ && kCertainShare * predicted > limit_ - (now - submitted_);
  }
  // Whether a request that takes `fastest` would be in time if no other were before it.
  bool HealedByTime(absl::Duration fastest) const { return fastest <= kAimedShare * limit_; }
  // When a request that is refused rather than served late has waited for too long.
  absl::Time deadline() const {
    return late_ || met_ ? absl::InfiniteFuture() : submitted_ + limit_;
  }
  // For the nodes that compute the prompt: from now until the first token is due, at least a
  // microsecond, because a sequence that is placed again may be due already. Infinite without a
  // goal, and for a late request: it comes behind those that can be in time.
  absl::Duration DueWithin(absl::Time now) const {
    const absl::Duration left = limit_ - (now - submitted_);
    return late_ ? absl::InfiniteDuration() : std::max(left, absl::Microseconds(1));
  }
  absl::Duration limit() const { return limit_; }

 private:
  const absl::Duration limit_;
  const absl::Time submitted_;
  bool late_ = false, met_ = false;
};

}  // namespace tandem::router
