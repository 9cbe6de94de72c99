#include "cli/report/statistics.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/match.h"
#include "common/base/check.h"

namespace tandem::cli {

namespace {

std::vector<TierSummary> SummarizeTiers(absl::Span<const RequestRecord> records) {
  struct Times {
    TierSummary summary;
    std::vector<double> ttft, itl;
  };
  std::map<std::string, Times> tiers;
  for (const RequestRecord& record : records) {
    if (record.service_tier.empty()) continue;
    Times& tier = tiers[record.service_tier];
    ++tier.summary.requests;
    if (!record.ok()) {
      ++(record.cancelled   ? tier.summary.cancelled
         : record.refused() ? tier.summary.refused
                            : tier.summary.failed);
      continue;
    }
    ++tier.summary.answered;
    if (record.first_token.has_value()) tier.ttft.push_back(record.ttft_ms());
    tier.itl.insert(tier.itl.end(), record.gaps_ms.begin(), record.gaps_ms.end());
  }
  std::vector<TierSummary> summaries;
  for (auto& [name, tier] : tiers) {
    tier.summary.name = name;
    tier.summary.ttft = Describe(std::move(tier.ttft));
    tier.summary.itl = Describe(std::move(tier.itl));
    summaries.push_back(std::move(tier.summary));
  }
  return summaries;
}

}  // namespace

bool RequestRecord::refused() const {
  if (first_token.has_value()) return false;
  return error == "HTTP 429" || error == "HTTP 503" ||
         absl::StrContains(error, "RESOURCE_EXHAUSTED") || absl::StrContains(error, "UNAVAILABLE");
}

double RequestRecord::ttft_ms() const {
  return absl::ToDoubleMilliseconds(*first_token - intended);
}

std::optional<double> RequestRecord::tpot_ms() const {
  if (output_tokens < 2 || !first_token.has_value()) return std::nullopt;
  return absl::ToDoubleMilliseconds(ended - *first_token) / (output_tokens - 1);
}

double Percentile(absl::Span<const double> sorted, double percent) {
  TANDEM_CHECK(!sorted.empty());
  const double rank = std::ceil(percent / 100 * static_cast<double>(sorted.size()));
  const double last = static_cast<double>(sorted.size());
  return sorted[static_cast<size_t>(std::clamp(rank, 1.0, last)) - 1];
}

Distribution Describe(std::vector<double> values) {
  Distribution distribution;
  if (values.empty()) return distribution;
  std::sort(values.begin(), values.end());
  distribution.count = static_cast<int64_t>(values.size());
  distribution.mean =
      std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  distribution.p50 = Percentile(values, 50);
  distribution.p90 = Percentile(values, 90);
  distribution.p99 = Percentile(values, 99);
  distribution.max = values.back();
  return distribution;
}

bool Meets(const RequestRecord& record, const Objectives& objectives) {
  if (!record.ok()) return false;
  if (objectives.e2e_ms > 0 && record.e2e_ms() > objectives.e2e_ms) return false;
  if (objectives.ttft_ms > 0 &&
      (!record.first_token.has_value() || record.ttft_ms() > objectives.ttft_ms)) {
    return false;
  }
  if (objectives.itl_ms > 0 && !record.gaps_ms.empty()) {
    std::vector<double> gaps(record.gaps_ms.begin(), record.gaps_ms.end());
    std::sort(gaps.begin(), gaps.end());
    if (Percentile(gaps, 99) > objectives.itl_ms) return false;
  }
  return true;
}

LoadSummary Summarize(absl::Span<const RequestRecord> records, absl::Duration elapsed,
                      const Objectives& objectives) {
  LoadSummary summary;
  summary.seconds = absl::ToDoubleSeconds(elapsed);
  summary.requests = static_cast<int64_t>(records.size());
  summary.objectives = objectives;
  summary.tiers = SummarizeTiers(records);
  std::vector<double> ttft, itl, tpot, e2e, lateness;
  for (const RequestRecord& record : records) {
    lateness.push_back(absl::ToDoubleMilliseconds(record.sent - record.intended));
    if (record.cancelled) {
      ++summary.cancelled;
    } else if (!record.ok()) {
      ++summary.errors[record.error];
      summary.error_messages.emplace(record.error, record.message);
    }
    if (!record.ok()) continue;
    ++summary.answered;
    summary.prompt_tokens += record.prompt_tokens;
    summary.output_tokens += record.output_tokens;
    summary.cached_tokens += record.cached_tokens;
    summary.good += Meets(record, objectives) ? 1 : 0;
    if (record.first_token.has_value()) ttft.push_back(record.ttft_ms());
    if (const auto each = record.tpot_ms(); each.has_value()) tpot.push_back(*each);
    e2e.push_back(record.e2e_ms());
    itl.insert(itl.end(), record.gaps_ms.begin(), record.gaps_ms.end());
  }
  summary.ttft = Describe(std::move(ttft));
  summary.itl = Describe(std::move(itl));
  summary.tpot = Describe(std::move(tpot));
  summary.e2e = Describe(std::move(e2e));
  summary.lateness = Describe(std::move(lateness));
  const int64_t judged = summary.requests - summary.cancelled;
  if (judged > 0) {
    summary.good_share = static_cast<double>(summary.good) / static_cast<double>(judged);
  }
  if (summary.seconds <= 0) return summary;
  const auto each_second = [&](int64_t count) {
    return static_cast<double>(count) / summary.seconds;
  };
  summary.requests_per_second = each_second(summary.answered);
  summary.output_tokens_per_second = each_second(summary.output_tokens);
  summary.tokens_per_second = each_second(summary.output_tokens + summary.prompt_tokens);
  summary.goodput = each_second(summary.good);
  return summary;
}

}  // namespace tandem::cli
