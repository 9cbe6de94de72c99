// Decides how soon a failed placement is tried again: at once while failures are few, later and
// spread out when they are many, so that retries do not amplify an outage. It is one token bucket
// for the whole router. When the bucket is empty, a retry reserves a future token and waits for it,
// but no longer than `wait_max`: a sequence whose turn came after its queue deadline would fail
// although there is room. Then a wave of more retries than the rate allows in that time comes back
// faster, spread over the second half of it, and the admission queue bounds what is placed.
// Counting the queue deadline from the end of the wait would keep the rate, and make clients wait
// for minutes. Thread safety: none; the core owns it, on the core's strand.
#pragma once

#include <algorithm>

#include "absl/time/time.h"
#include "common/runtime/random.h"

namespace tandem::router {

class RetryBudget {
 public:
  // Tokens in a full bucket: enough to retry the whole batches of a few nodes at once.
  static constexpr double kBurst = 1024;
  static constexpr double kPerSecond = 200;
  // The wait before a sequence's second retry; it doubles with each later one.
  static constexpr absl::Duration kBackoffMin = absl::Milliseconds(25);
  static constexpr absl::Duration kBackoffMax = absl::Seconds(1);

  // `wait_max`: of any retry.
  explicit RetryBudget(Random& random, absl::Duration wait_max = absl::InfiniteDuration())
      : random_(random), wait_max_(wait_max) {}

  // Whether a retry now would be within the budget.
  bool HasRoom(absl::Time now) {
    Refill(now);
    return tokens_ >= 1;
  }
  // Takes a token for a sequence's `retry`th retry (1 = its first) and returns how long the retry
  // must wait. Jitter draws the wait from its upper half.
  absl::Duration Take(int retry, absl::Time now) {
    Refill(now);
    // What would wait for longer than wait_max reserves nothing: later ones need not wait for it.
    tokens_ = std::max(tokens_ - 1, -kPerSecond * absl::ToDoubleSeconds(wait_max_));
    absl::Duration wait;
    if (tokens_ < 0) wait = absl::Seconds(1) * (-tokens_ / kPerSecond);
    if (retry > 1)
      wait = std::max(wait, std::min(kBackoffMin * (1 << std::min(retry - 2, 10)), kBackoffMax));
    wait = std::min(wait, wait_max_);
    return wait * (0.5 + static_cast<double>(random_.Below(1001)) / 2000);
  }

 private:
  void Refill(absl::Time now) {
    if (now > last_) {
      const double passed = last_ == absl::InfinitePast() ? 0 : absl::ToDoubleSeconds(now - last_);
      tokens_ = std::min(kBurst, tokens_ + passed * kPerSecond);
      last_ = now;
    }
  }

  Random& random_;
  const absl::Duration wait_max_;
  double tokens_ = kBurst;  // negative: reserved future tokens
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace tandem::router
