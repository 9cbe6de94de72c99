#include "cli/bench_trace/trace_measurement.h"

#include <algorithm>
#include <map>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"

namespace tandem::cli {
namespace {

void AddAnswer(const RequestRecord& record, const Objectives& objectives, sim::GapNoise& noise,
               sim::TraceResult& result) {
  ++result.answered;
  result.output_tokens += record.output_tokens;
  if (record.first_token.has_value()) result.ttft.Add(absl::Milliseconds(record.ttft_ms()));
  result.e2e.Add(record.ended - record.intended);
  for (const float ms : record.gaps_ms) result.itl.Add(absl::Milliseconds(ms));
  noise.Add(record.gaps_ms);
  sim::PromptSources& sources = result.sources;
  sources.prompt += record.prompt_tokens;
  (record.prefilled_apart ? sources.prefill_cache : sources.decode_cache) += record.cached_tokens;
  sources.host_memory += record.host_memory_tokens;
  sources.disk += record.disk_tokens;
  sources.fetched += record.fetched_tokens;
  result.good += Meets(record, objectives) ? 1 : 0;
}

void AddToTier(const RequestRecord& record, const router::ServiceTier& tier,
               sim::TierResult& result) {
  ++result.requests;
  result.refused += record.refused() ? 1 : 0;
  if (!record.ok()) return;
  ++result.answered;
  if (!record.first_token.has_value()) return;
  result.ttft.Add(absl::Milliseconds(record.ttft_ms()));
  absl::Duration gaps;
  for (const float ms : record.gaps_ms) {
    result.itl.Add(absl::Milliseconds(ms));
    gaps += absl::Milliseconds(ms);
  }
  // Tokens may come together, in one part.
  const auto count =
      std::max(int64_t{record.output_tokens} - 1, static_cast<int64_t>(record.gaps_ms.size()));
  const bool in_time = tier.InTime(*record.first_token - record.intended, gaps, count);
  result.in_time += in_time ? 1 : 0;
}

}  // namespace

sim::TraceResult MeasureTrace(const LoadResult& load, const sim::TraceObjectives& objectives,
                              const sim::ServiceMix& mix, absl::Span<const int64_t> ceilings) {
  const Objectives limits = {.ttft_ms = absl::ToDoubleMilliseconds(objectives.ttft),
                             .itl_ms = absl::ToDoubleMilliseconds(objectives.itl)};
  sim::TraceResult result;
  sim::GapNoise noise;
  for (const auto& tier : mix.All()) result.tiers.push_back({.name = tier->name});
  for (const RequestRecord& record : load.records) {
    ++result.requests;
    if (const auto tier = mix.TierOf(record.index))
      AddToTier(record, *tier, result.TierNamed(tier->name));
    if (record.ok()) {
      AddAnswer(record, limits, noise, result);
      const auto index = static_cast<size_t>(record.index);
      result.sources.ceiling += index < ceilings.size() ? ceilings[index] : 0;
      continue;
    }
    ++(record.cancelled ? result.unfinished : record.refused() ? result.refused : result.failed);
    if (result.first_error.empty() && !record.error.empty())
      result.first_error = absl::StrCat(record.error, ": ", record.message);
  }
  result.gap_noise = noise.Quantiles();
  result.virtual_s = absl::ToDoubleSeconds(load.elapsed);
  return result;
}

void AddNodes(const v1::GetStatusResponse& before, const v1::GetStatusResponse& after,
              sim::TraceResult& result) {
  std::map<std::string, const v1::NodeStatus*> earlier;
  for (const v1::NodeStatus& node : before.nodes()) earlier[node.node_id()] = &node;
  for (const v1::NodeStatus& node : after.nodes()) {
    const auto found = earlier.find(node.node_id());
    // The totals of a node that has started again, or joined, count from its start.
    const bool same = found != earlier.end() && found->second->incarnation() == node.incarnation();
    const v1::NodeStatus& was = same ? *found->second : v1::NodeStatus::default_instance();
    result.nodes.push_back(
        {.name = node.node_id(),
         .prefill = node.role() == "prefill",
         .busy_s = (node.step_cost().actual_us() - was.step_cost().actual_us()) / 1e6,
         .steps = node.step_cost().samples() - was.step_cost().samples(),
         .prompt_tokens =
             node.counters().prompt_tokens().computed() - was.counters().prompt_tokens().computed(),
         .generated_tokens =
             node.counters().generated_tokens() - was.counters().generated_tokens()});
  }
  std::stable_sort(result.nodes.begin(), result.nodes.end(),
                   [](const auto& a, const auto& b) { return a.prefill > b.prefill; });
}

}  // namespace tandem::cli
