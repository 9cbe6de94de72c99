#include "common/lending/compute_share.h"

#include <algorithm>

namespace tandem::lending {
namespace {

constexpr absl::Duration kShareWindow = absl::Seconds(1);
// A share so small that one answer would take hours to earn.
constexpr double kShareMin = 0.001;

}  // namespace

ComputeShare::ComputeShare(double share, absl::Time now)
    : share_(std::max(share, kShareMin)), earned_until_(now), saved_(share_ * kShareWindow) {}

absl::Duration ComputeShare::Delay(absl::Time now) {
  saved_ = std::min(saved_ + share_ * (now - earned_until_), share_ * kShareWindow);
  earned_until_ = now;
  if (share_ >= 1 || saved_ >= absl::ZeroDuration()) return absl::ZeroDuration();
  saved_ = std::max(saved_, -share_ * kDelayMax);
  return -saved_ / share_;
}

void ComputeShare::Spend(absl::Duration busy) { saved_ -= busy; }

}  // namespace tandem::lending
