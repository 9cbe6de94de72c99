// Replays a trace through the shipping router and the shipping nodes' schedulers in virtual time.
// Engines compute no bytes and transfers move none: both only take the time that a cost model says.
// So a fleet of thousands of nodes fits into one process, and an hour of load takes seconds.
//
// Equal options and an equal source give an equal result.
// Thread safety: a function; independent calls may run in parallel.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/cost/step_cost.h"
#include "router/core/router_options.h"
#include "router/placement/placement_policy.h"
#include "sim/trace/service_mix.h"
#include "sim/trace/step_noise.h"
#include "sim/trace/timed_plane.h"
#include "sim/trace/timed_storage.h"
#include "sim/trace/trace_result.h"
#include "sim/trace/trace_summary.h"
#include "sim/trace/workload_source.h"

namespace tandem::sim {

struct TraceOptions {
  int32_t routers = 1, prefill_nodes = 8, decode_nodes = 8;
  int64_t blocks_per_node = 0;  // of the summary's size; 0 = all that the trace can fill
  int64_t max_batch_tokens = 2048;
  int64_t max_sequences = 256;
  router::PlacementPolicy placement = router::RouterOptions().placement;
  cost::StepProfile step_cost;
  StepNoise step_noise;  // of the times that step_cost predicts
  int64_t kv_bytes_per_token = 0;
  LinkOptions link;
  TimedTier host_memory, disk;  // of each node, for blocks that its memory has no room for
  absl::Duration step_gap;      // what a node itself does between two steps takes
  absl::Duration itl_slo;       // a node's --itl-slo; 0 = none
  // A router's options of these names; their defaults are the routers'.
  absl::Duration prefill_wait_max = router::RouterOptions().prefill_wait_max;
  absl::Duration queue_deadline = router::RouterOptions().queue_deadline;
  router::ServiceTier default_tier = router::RouterOptions().default_tier;
  ServiceMix service_mix;  // of the requests
  TraceObjectives objectives;
  uint64_t seed = 1;
};

// A node's pool takes about 80 bytes a block; all nodes together may have this many.
inline constexpr int64_t kSimulatedBlocksMax = 1 << 26;
inline constexpr int32_t kSimulatedNodesMax = 4096;  // as RouterOptions::nodes_max
// The simulation ends this long after the last arrival, in virtual time, whatever still runs.
inline constexpr absl::Duration kPatienceAfterLastArrival = absl::Hours(1);

// The blocks that each node gets. Errors: kInvalidArgument when blocks_per_node cannot hold the
// trace's longest sequence, or when all nodes together exceed kSimulatedBlocksMax.
absl::StatusOr<int64_t> BlocksPerNode(const TraceOptions& options, const TraceSummary& summary);

// `summary`: of an equal source, whose requests `source` gives again. Errors: those of
// BlocksPerNode; the source's; kInvalidArgument for more nodes than kSimulatedNodesMax, or none
// that generates.
absl::StatusOr<TraceResult> RunTrace(const TraceOptions& options, const TraceSummary& summary,
                                     WorkloadSource& source);

}  // namespace tandem::sim
