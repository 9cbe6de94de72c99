// What a router measures of its requests, whichever front end they came from. Names in vLLM's form
// stand beside ours where they mean the same, so that its dashboards and load generators work.
// Thread safety: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include "common/request/sampling_params.h"
#include "common/telemetry/metrics.h"
#include "router/core/service_tiers.h"
#include "router/front_end/tier_metrics.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// What the HTTP server holds.
struct HttpGauges {
  int64_t connections = 0;
  int64_t buffer_bytes = 0;     // see BufferBudget
  int64_t buffers_refused = 0;  // so far
  int64_t audit_lost = 0;       // lines of the audit log, so far
  int64_t quota_routers = 0;    // other routers that tenants' quotas are divided with
};

// Why a request was not taken on that would be served at another time.
enum class RefusalReason {
  kOverload,     // it would have waited, or has waited, too long for the router
  kExhausted,    // RESOURCE_EXHAUSTED: no room is left, or its first token would come too late
  kUnavailable,  // UNAVAILABLE: the core takes nothing more
};

class RequestMetrics {
 public:
  // `tiers`: those of which requests are measured apart.
  explicit RequestMetrics(const std::string& model, const ServiceTiers& tiers = ServiceTiers());

  void OnFirstToken(absl::Duration since_submit);
  void OnTokens(int64_t tokens, absl::Duration since_last);
  // One of the answers that a request's client gets has ended.
  void OnFinished(const v1::Finished& finished);
  // One of a request's sequences has ended, whether the client gets its answer or not (best_of).
  void OnSequence(const v1::Route& route, const v1::Timing& timing);
  // A request has ended without an error. Called once, after the end of its last answer. `queued`:
  // until it was placed.
  void OnRequestFinished(v1::FinishReason reason, absl::Duration queued,
                         absl::Duration since_submit);
  // A request that was taken on has failed.
  void OnFailed();
  // The client left before the core accepted the request.
  void OnAborted() { aborted_.Add(1); }
  // How long a request had waited, and was predicted to wait, for the core.
  void OnWait(absl::Duration wait) { wait_s_->Record(absl::ToDoubleSeconds(wait)); }
  // A request was not taken on. Called once for each.
  void OnRefused(RefusalReason reason) { refused_[static_cast<size_t>(reason)]->Add(1); }
  // Requests that were not taken on, for whatever reason.
  int64_t refused() const;

  // Of the tier's requests. REQUIRES: the tier is one of those given.
  TierMetrics& Of(const ServiceTier& tier) { return by_tier_.at(tier.name); }

  // Since the start. Prompt tokens count when their request ends, output tokens as they come.
  struct Totals {
    double requests = 0, prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  };
  Totals totals() const;

  // The page for Prometheus: the above, and gauges from `status`.
  std::string Text(const v1::GetStatusResponse& status, const HttpGauges& http) const;

 private:
  struct Pair {
    Counter* ours;
    Counter* alias;
    void Add(double value) const {
      ours->Add(value);
      alias->Add(value);
    }
  };
  struct HistogramPair {
    Histogram* ours;
    Histogram* alias;
    void Record(double value) const {
      ours->Record(value);
      alias->Record(value);
    }
  };

  // What compares first tokens with their predictions.
  void AddPredictions();
  Pair CounterPair(const char* ours, const char* alias, const char* help, MetricLabels labels = {});
  HistogramPair AddHistograms(const char* ours, const char* alias, const char* help,
                              std::vector<double> bounds);

  MetricRegistry registry_;
  const MetricLabels model_label_;
  // By name. Bound: kServiceTiersMax (16) and the default.
  std::map<std::string, TierMetrics> by_tier_;
  Pair prompt_tokens_, output_tokens_, cached_tokens_, cache_queries_;
  Pair stopped_, length_, aborted_, failed_;
  std::array<Counter*, 3> refused_;  // by RefusalReason
  Histogram* wait_s_;
  // Of first tokens that were predicted, from their requests' placement.
  Counter *first_token_predicted_s_, *first_token_measured_s_;
  Histogram* first_token_ratio_;
  Histogram *kv_wire_s_, *kv_hidden_s_, *kv_beyond_s_;
  HistogramPair first_token_s_, between_tokens_s_, total_s_, queue_s_, prompt_size_, output_size_;
};

}  // namespace tandem::router
