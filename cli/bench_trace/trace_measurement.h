// What a trace came to on a real cluster, in the form in which the simulator reports.
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "cli/bench_serve/load_run.h"
#include "sim/trace/trace_result.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

// `before` and `after`: the cluster's status around the load. What a node did before it started
// again in between is not counted. What the cluster computed for other clients is counted as well.
// `mix`: of the load's requests; it knows the goals of their tiers.
sim::TraceResult MeasureTrace(const LoadResult& load, const sim::TraceObjectives& objectives,
                              const sim::ServiceMix& mix, const v1::GetStatusResponse& before,
                              const v1::GetStatusResponse& after);

}  // namespace tandem::cli
