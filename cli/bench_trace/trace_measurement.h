// What a trace came to on a real cluster, in the form in which the simulator reports.
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "cli/bench_serve/load_run.h"
#include "sim/trace/trace_result.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// All but the nodes' work. `mix`: of the load's requests; it knows the goals of their tiers.
// `ceilings`: TraceWorkload's, by the requests' index.
sim::TraceResult MeasureTrace(const LoadResult& load, const sim::TraceObjectives& objectives,
                              const sim::ServiceMix& mix, absl::Span<const int64_t> ceilings);

// Adds the nodes' work. `before` and `after`: the cluster's status around the load. What a node did
// before it started again in between is not counted. What the cluster computed for other clients is
// counted as well.
void AddNodes(const v1::GetStatusResponse& before, const v1::GetStatusResponse& after,
              sim::TraceResult& result);

}  // namespace tandem::cli
