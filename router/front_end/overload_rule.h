// Decides from the waits of requests when a server is overloaded, and how long a request may then
// have waited. It detects a standing queue as "Controlling Queue Delay" does (Nichols, Jacobson,
// ACM Queue 10(5), 2012), and refuses as "Fail at Scale" does (Maurer, ACM Queue 13(8), 2015):
//   - A burst makes the longest waits long but leaves the shortest ones short. So the shortest wait
//     of an interval tells whether a queue stands.
//   - While a queue stands, requests that have waited for more than twice the target are refused.
//     The others are served in time, and the server stays fully used.
// A queue stands when, in each of kParts consecutive parts of an interval, no request waited less
// than the target and at least kWaitingMin requests waited at a time (by Little's law: the sum of
// the waits over the length of the part). So a process that stalls for a second fills only one
// part, and a few clients of a slow machine are no queue. The queue ends with the first request
// that waited less than the target, or when fewer than kWaitingLeft requests wait at a time.
//
// Thread safety: none; LoadShedder guards it. REQUIRES: `now` does not decrease between calls.
#pragma once

#include "absl/time/time.h"

namespace tandem::router {

class OverloadRule {
 public:
  static constexpr int kParts = 4;
  static constexpr double kWaitingMin = 64;
  static constexpr double kWaitingLeft = 4;

  struct Options {
    absl::Duration target;    // what a request may wait while a queue stands; > 0
    absl::Duration interval;  // for how long a queue must stand; > 0
  };

  explicit OverloadRule(const Options& options) : options_(options) {}

  // Records that a request seen now has waited for `waited`, whether it is then refused or not.
  void Observe(absl::Duration waited, absl::Time now) {
    if (waited < options_.target) {
      parts_ = 0;
      BeginPart(now);
    } else if (now - part_began_ >= options_.interval / kParts) {
      const double waiting = absl::FDivDuration(waits_, now - part_began_);
      const bool stands = waiting >= (overloaded() ? kWaitingLeft : kWaitingMin);
      parts_ = stands ? parts_ + (overloaded() ? 0 : 1) : 0;
      BeginPart(now);
    }
    waits_ += waited;
  }

  bool overloaded() const { return parts_ == kParts; }
  // The longest wait of a request that may be accepted.
  absl::Duration waited_max() const {
    return overloaded() ? 2 * options_.target : absl::InfiniteDuration();
  }

 private:
  void BeginPart(absl::Time now) {
    part_began_ = now;
    waits_ = absl::ZeroDuration();
  }

  const Options options_;
  absl::Time part_began_ = absl::InfinitePast();
  absl::Duration waits_;  // of this part's requests, summed
  int parts_ = 0;         // consecutive ones with a standing queue, at most kParts
};

}  // namespace tandem::router
