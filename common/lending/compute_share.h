// How much processor time answers to debtors may take: a share of one processor, over a second.
// Unused time is saved up to one second's share. Computing beyond it makes the next answers wait,
// each for at most kDelayMax: debtors make progress whatever the share is.
// Thread safety: none; the lending thread. It takes `now`, so tests need no clock.
#pragma once

#include "absl/time/time.h"

namespace tandem::lending {

class ComputeShare {
 public:
  // Well below the time that a debtor waits for an answer (CreditorLinksOptions::answer_time_max).
  static constexpr absl::Duration kDelayMax = absl::Milliseconds(200);

  // `share`: above 0; at 1 or more nothing waits.
  ComputeShare(double share, absl::Time now);
  // How long the next answer has to wait.
  absl::Duration Delay(absl::Time now);
  void Spend(absl::Duration busy);

 private:
  const double share_;
  absl::Time earned_until_;
  absl::Duration saved_;  // below zero: owed
};

}  // namespace tandem::lending
