// When a server that has too little time for its requests begins to refuse some, and which: the
// standing queue of "Controlling Queue Delay" (Nichols, Jacobson, ACM Queue 10(5), 2012), with the
// refusals of "Fail at Scale" (Maurer, ACM Queue 13(8), 2015): of the wait of each request,
//   - bursts make the longest waits long and the shortest short, so the shortest of an interval
//     tells whether a queue stands;
//   - while one stands, whoever has waited for more than twice the target is refused, so that the
//     others are served in time and the server has as much to do as it can.
// A standing queue is one in which, for kParts parts of an interval one after the other, nobody
// waited less than the target, and at least kWaitingMin requests waited at a time (by Little's law:
// the sum of waits over the time in which they were seen). A process that stood still for a second
// is one such part, however many requests came meanwhile, and a few clients of a slow machine are
// no queue. It ends with the first request that waited less than the target, or when fewer than
// kWaitingLeft wait.
//
// Thread safety: none. Takes the time as a parameter, and never goes back in it.
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

  // A request that is looked at now has waited for `waited`, whatever becomes of it.
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
  // How long an accepted request may have waited.
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
  int parts_ = 0;         // that had a standing queue, one after the other
};

}  // namespace tandem::router
