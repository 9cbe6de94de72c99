#include "router/front_end/tier_metrics.h"

#include <vector>

namespace tandem::router {
namespace {

std::vector<double> TierSecondsBounds() {
  return {0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 60, 120};
}

constexpr std::array<const char*, 5> kOutcomes = {"in_time", "late", "refused", "aborted",
                                                  "failed"};

}  // namespace

TierMetrics::TierMetrics(const ServiceTier& tier, MetricRegistry& registry, MetricLabels labels) {
  labels.emplace_back("service_tier", tier.name);
  first_token_s_ = &registry.AddHistogram("tandem_tier_first_token_seconds",
                                          "From the request to its first token, by service tier.",
                                          TierSecondsBounds(), labels);
  between_tokens_s_ = &registry.AddHistogram("tandem_tier_between_tokens_seconds",
                                             "Between an answer's tokens, by service tier.",
                                             TierSecondsBounds(), labels);
  labels.emplace_back("outcome", "");
  for (size_t i = 0; i < ended_.size(); ++i) {
    labels.back().second = kOutcomes[i];
    ended_[i] = &registry.AddCounter(
        "tandem_tier_requests_total",
        "Requests that ended, by service tier: answered within its goals (in_time) or not (late), "
        "refused, aborted, failed.",
        labels);
  }
}

}  // namespace tandem::router
