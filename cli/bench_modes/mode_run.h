// Starts a cluster, sends it a load, and stops it.
// Thread safety: the calling thread only. Owner: the bench modes command.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "cli/bench_serve/load_run.h"
#include "cli/bench_serve/workload.h"
#include "cli/cluster/cluster_plan.h"
#include "cli/cluster_load/measured_cluster.h"

namespace tandem::cli {

struct ModeRun {
  UpConfig up;
  LoadOptions load;
  WorkloadOptions workload;
  MeasuredCluster::ShouldStop should_stop;
  std::function<void(const LoadProgress&)> on_progress;
};

// Errors: the cluster did not start or ended; kCancelled when should_stop said so; no request was
// answered.
absl::StatusOr<LoadResult> RunMode(const ModeRun& run,
                                   const std::map<std::string, std::string>& env);

}  // namespace tandem::cli
