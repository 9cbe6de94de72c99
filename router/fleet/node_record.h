// How far what a node says was true: of the blocks that it said it holds, how many it had, and how
// late its first tokens came beyond what was predicted; and whether its legs failed. Placement
// trusts a node less after it was wrong or failed, and as before again some time later, so that a
// node that was restarted or mended gets work. A node that is wrong costs recomputation and time;
// it can never change a token. Thread safety: none; the Fleet owns it, one for each node.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "absl/time/time.h"

namespace tandem::router {

class NodeRecord {
 public:
  // Half of what is held against a node is forgotten in this time.
  static constexpr absl::Duration kHalfLife = absl::Seconds(10);
  // A prediction that is off by a factor of two and a scheduler's pause is not held against it.
  static constexpr double kExpectedFactor = 2;
  static constexpr absl::Duration kExpectedPause = absl::Milliseconds(20);
  static constexpr absl::Duration kLateMax = absl::Minutes(10);
  // Added to the cost of a node whose legs all fail: a node that fails at once is always idle.
  static constexpr absl::Duration kFailedPrice = absl::Seconds(10);

  // The node should have had `claimed` tokens of a prompt, and had `found`.
  void OnPrefix(int64_t claimed, int64_t found, absl::Time now) {
    if (claimed <= 0) return;
    const double missing = 1 - static_cast<double>(std::clamp<int64_t>(found, 0, claimed)) /
                                   static_cast<double>(claimed);
    missing_ += kNewest * (missing - missing_);
    missing_at_ = now;
  }
  // A prompt's first token was predicted after `predicted` and came after `took`.
  void OnFirstToken(absl::Duration predicted, absl::Duration took, absl::Time now) {
    const absl::Duration late = std::clamp(took - kExpectedFactor * predicted - kExpectedPause,
                                           absl::ZeroDuration(), kLateMax);
    late_us_ += kNewest * (absl::ToDoubleMicroseconds(late) - late_us_);
    late_at_ = now;
  }

  // A leg failed there, by the node's fault. A step that fails takes all its legs with it: those of
  // one time count once.
  void OnFailedLeg(absl::Time now) {
    if (failed_ > 0 && now <= failed_at_) return;
    const double before = failed_ > 0 ? failed_ * Left(failed_at_, now) : 0;
    failed_ = before + kNewest * (1 - before);
    failed_at_ = now;
  }

  // Of `count` blocks or tokens that it says it holds, how many placement counts on: to the
  // nearest, so that a node that was once wrong by little is still asked for the last one.
  int64_t Trusted(int64_t count, absl::Time now) const {
    return std::llround(static_cast<double>(count) * Trust(now));
  }
  // That share, in [0, 1].
  double Trust(absl::Time now) const {
    return missing_ > 0 ? 1 - missing_ * Left(missing_at_, now) : 1;
  }
  // Added to the times that are predicted for it.
  double LateUs(absl::Time now) const { return late_us_ > 0 ? late_us_ * Left(late_at_, now) : 0; }
  // Added to what a request costs there, for the legs that failed. No time: where all nodes have
  // failed, requests must not wait for better ones.
  double FailedUs(absl::Time now) const {
    if (failed_ == 0) return 0;
    return failed_ * Left(failed_at_, now) * absl::ToDoubleMicroseconds(kFailedPrice);
  }

 private:
  static constexpr double kNewest = 0.25;

  static double Left(absl::Time since, absl::Time now) {
    return now <= since ? 1 : std::exp2(-absl::FDivDuration(now - since, kHalfLife));
  }

  double missing_ = 0, late_us_ = 0, failed_ = 0;
  absl::Time missing_at_ = absl::InfiniteFuture(), late_at_ = absl::InfiniteFuture();
  absl::Time failed_at_ = absl::InfiniteFuture();
};

}  // namespace tandem::router
