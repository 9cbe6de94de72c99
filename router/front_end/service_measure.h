// The times of one request, against the goals of its service tier.
// Thread safety: none; the core's strand. Owner: the request's AnswerSession.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/core/service_tier.h"
#include "router/front_end/tier_metrics.h"

namespace tandem::router {

class ServiceMeasure {
 public:
  // `metrics`: the tier's; outlives this.
  ServiceMeasure(std::shared_ptr<const ServiceTier> tier, TierMetrics& metrics)
      : tier_(std::move(tier)), metrics_(metrics) {}

  const std::shared_ptr<const ServiceTier>& tier() const { return tier_; }

  void OnFirstToken(absl::Duration since_submit);
  // More tokens of one of its sequences; `since_last`: after the one before.
  void OnTokens(int64_t tokens, absl::Duration since_last);
  // The request was not taken on (RefusalReason). OnEnd is then not called.
  void OnRefused() { metrics_.OnEnded(TierOutcome::kRefused); }
  // The request is over. `aborted`: its client ended it.
  void OnEnd(const absl::Status& status, bool aborted);

 private:
  const std::shared_ptr<const ServiceTier> tier_;
  TierMetrics& metrics_;
  // Infinite before the first token.
  absl::Duration first_token_ = absl::InfiniteDuration();
  absl::Duration gaps_;  // summed
  int64_t gap_tokens_ = 0;
};

}  // namespace tandem::router
