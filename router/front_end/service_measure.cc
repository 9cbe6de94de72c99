#include "router/front_end/service_measure.h"

namespace tandem::router {

void ServiceMeasure::OnFirstToken(absl::Duration since_submit) {
  first_token_ = since_submit;
  metrics_.OnFirstToken(since_submit);
}

void ServiceMeasure::OnTokens(int64_t tokens, absl::Duration since_last) {
  gaps_ += since_last;
  gap_tokens_ += tokens;
  metrics_.OnTokens(tokens, since_last);
}

void ServiceMeasure::OnEnd(const absl::Status& status, bool aborted) {
  const bool began = first_token_ != absl::InfiniteDuration();
  if (aborted || absl::IsCancelled(status)) return metrics_.OnEnded(TierOutcome::kAborted);
  if (absl::IsResourceExhausted(status) && !began) return metrics_.OnEnded(TierOutcome::kRefused);
  if (!status.ok()) return metrics_.OnEnded(TierOutcome::kFailed);
  const bool in_time = tier_->InTime(first_token_, gaps_, gap_tokens_);
  metrics_.OnEnded(in_time ? TierOutcome::kInTime : TierOutcome::kLate);
}

}  // namespace tandem::router
