// What one cache of limited size would answer of a trace, by the rule that says which block goes
// first: something to hold a fleet's hits against.
// Thread safety: pure functions of the source.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/cost/step_cost.h"
#include "sim/trace/workload_source.h"

namespace tandem::sim {

struct PolicyHits {
  std::string policy;  // "LRU", "LFU", "FIFO", "cost-aware", "pool"
  int64_t hit_tokens = 0;
};

// Replays the trace's full blocks, request after request, through one cache of `blocks` blocks for
// each policy. A request finds the longest beginning that is there, short of its last token, and
// leaves all of its full blocks, those at its end first in line to go.
//   LRU         the block that was used longest ago goes
//   LFU         the block that was used least often goes; among those, the LRU one
//   FIFO        the block that came first goes
//   cost-aware  GreedyDual with frequency: the block with the least (uses * time to compute it,
//               as `cost` predicts), where blocks age by what was evicted before
//   pool        as a node's pool does it (common/kv/eviction_order.h)
// REQUIRES: blocks > 0. Errors: the source's.
absl::StatusOr<std::vector<PolicyHits>> CompareCachePolicies(
    WorkloadSource& source, int64_t blocks, const cost::StepProfile& cost,
    int64_t block_tokens = kTraceBlockTokens);

}  // namespace tandem::sim
