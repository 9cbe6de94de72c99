// The result of `tandem sim trace` and of `tandem bench trace` as a table, as JSON and as one HTML
// page with charts. Thread safety: pure functions.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "sim/trace/cache_policies.h"
#include "sim/trace/trace_result.h"
#include "sim/trace/trace_summary.h"

namespace tandem::cli {

struct TraceReport {
  // What was run, as it is shown: ("placement", "affinity").
  std::vector<std::pair<std::string, std::string>> settings;
  sim::TraceObjectives objectives;
  sim::TraceSummary trace;
  sim::TraceResult result;
  // What one cache of as many blocks as all nodes that compute prompts would answer; empty where
  // they have room for all.
  std::vector<sim::PolicyHits> policies;
  int64_t policy_blocks = 0;
  double wall_s = 0;      // that the simulation took
  bool simulated = true;  // else real processes served the trace, and times are the clock's
  bool interrupted = false;
  std::string nodes_error;  // why the nodes' work is not known; "" = it is
};

// For a terminal.
std::string FormatTraceTable(const TraceReport& report);
// One object. "hit" and "ceiling" are shares of prompt tokens, "hit" of answered requests and
// "ceiling" of the whole trace; "hit_of_ceiling" compares the hits of answered requests with what a
// cache without limit would answer of the same ones. "hits" are tokens of answered requests: this
// "ceiling", and hits by the node that had them and by their source: "blocks", "host_memory",
// "disk", "fetched" from other nodes; "nodes_error" says why "nodes" are not known;
// "max_over_mean" compares the work of the busiest node that computes prompts with the mean;
// "ttft_ms", "itl_ms" and "e2e_ms" hold percentiles; "gap_noise", of real processes, is what
// `tandem sim trace --step-noise` takes: pairs of a percentage and a factor; "goodput" is in
// requests a second, by the load's time; "service_tiers" has the tiers of the mix by name, each
// with the share of its requests that were in time.
std::string FormatTraceJson(const TraceReport& report);
// One page that loads nothing else. It is well-formed XML too.
std::string FormatTraceHtml(const TraceReport& report);

}  // namespace tandem::cli
