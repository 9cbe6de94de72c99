// The result of a simulated trace.
// Thread safety: plain values.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "sim/trace/latency_histogram.h"
#include "sim/trace/step_noise.h"

namespace tandem::sim {

// What a request must meet to count as good; 0 = no limit.
struct TraceObjectives {
  absl::Duration ttft;
  absl::Duration itl;  // 99 % of the request's own gaps between tokens
  bool any() const { return ttft > absl::ZeroDuration() || itl > absl::ZeroDuration(); }
};

// Tokens of answered requests' prompts, by where their KV came from.
struct PromptSources {
  int64_t prompt = 0;         // all
  int64_t ceiling = 0;        // that a cache of all prompts before each one would answer
  int64_t prefill_cache = 0;  // held by the prefill node
  int64_t decode_cache = 0;   // held by the decode node, which computed the rest itself
  // Of both: what was brought for a prompt, as v1::TokensBySource counts it.
  int64_t host_memory = 0, disk = 0, fetched = 0;
  int64_t hits() const { return prefill_cache + decode_cache; }
  // The rest: in the node's blocks. Not below 0, where a retry found less than its first attempt.
  int64_t blocks() const { return std::max<int64_t>(0, hits() - host_memory - disk - fetched); }
};

struct NodeResult {
  std::string name;
  bool prefill = false;
  double busy_s = 0;  // in engine steps
  int64_t steps = 0, prompt_tokens = 0, generated_tokens = 0;
};

// Of the requests of one service tier.
struct TierResult {
  std::string name;
  int64_t requests = 0, answered = 0;
  int64_t refused = 0;         // at once or later
  int64_t in_time = 0;         // answered, and no goal of the tier was missed
  LatencyHistogram ttft, itl;  // of answered requests
};

struct TraceResult {
  // requests = answered + failed + refused + unfinished
  int64_t requests = 0, answered = 0;
  int64_t failed = 0;       // after the router took them on
  int64_t refused = 0;      // at once
  int64_t unfinished = 0;   // when the simulation gave up waiting
  std::string first_error;  // of a failed or refused request
  int64_t good = 0;         // answered within the objectives
  int64_t output_tokens = 0;
  LatencyHistogram ttft, itl, e2e;       // of answered requests; from the arrival
  std::vector<NoiseQuantile> gap_noise;  // of real processes: GapNoise of the answers
  PromptSources sources;
  std::vector<NodeResult> nodes;  // prefill nodes first
  std::vector<TierResult> tiers;  // in the order of the mix; empty without one
  double virtual_s = 0;           // from the first arrival to the last answer
  int64_t events = 0;

  double hit() const {
    return sources.prompt > 0
               ? static_cast<double>(sources.hits()) / static_cast<double>(sources.prompt)
               : 0;
  }
  // What hit() could be at most, but for partly filled blocks.
  double ceiling() const {
    return sources.prompt > 0
               ? static_cast<double>(sources.ceiling) / static_cast<double>(sources.prompt)
               : 0;
  }
  // Of the nodes that compute prompts: the work of the busiest one by the mean. 1 = even; 0
  // without work.
  double max_over_mean() const;
  // Of the tier of this name. REQUIRES: it is among `tiers`.
  TierResult& TierNamed(absl::string_view name);
  double goodput() const { return virtual_s > 0 ? static_cast<double>(good) / virtual_s : 0; }
};

}  // namespace tandem::sim
