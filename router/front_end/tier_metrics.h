// What a router measures of one service tier's requests.
// Thread safety: any thread. Owner: RequestMetrics.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"
#include "common/telemetry/metrics.h"
#include "router/core/service_tier.h"

namespace tandem::router {

// What became of a request, as its tier counts it.
enum class TierOutcome {
  kInTime,   // answered, and no goal of its tier was missed
  kLate,     // answered
  kRefused,  // not taken on (RefusalReason), or RESOURCE_EXHAUSTED before its first token
  kAborted,  // by its client
  kFailed,
};

class TierMetrics {
 public:
  // `registry` outlives this. `labels`: beside the tier's own.
  TierMetrics(const ServiceTier& tier, MetricRegistry& registry, MetricLabels labels);

  void OnFirstToken(absl::Duration since_submit) {
    first_token_s_->Record(absl::ToDoubleSeconds(since_submit));
  }
  // Tokens came `since_last` after the one before.
  void OnTokens(int64_t tokens, absl::Duration since_last) {
    between_tokens_s_->Record(absl::ToDoubleSeconds(since_last) / static_cast<double>(tokens));
  }
  void OnEnded(TierOutcome outcome) { ended_[static_cast<size_t>(outcome)]->Add(1); }

 private:
  Histogram *first_token_s_, *between_tokens_s_;
  std::array<Counter*, 5> ended_;  // by TierOutcome
};

}  // namespace tandem::router
