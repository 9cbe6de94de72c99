// What a chaos run's cluster is to come back to when its faults are over: every process serves, and
// nothing is held for requests that have ended. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/chaos/chaos_cluster.h"
#include "cli/chaos/fault_plan.h"

namespace tandem::cli {

// Waits for `time`, or until the run is interrupted. Returns whether it was interrupted.
using StopCheck = std::function<bool(absl::Duration time)>;

// Waits until all processes of the cluster serve, up to 180 s. Errors: kCancelled when the run was
// interrupted; kDeadlineExceeded; those of ChaosCluster::Ready.
absl::Status AwaitReady(ChaosCluster& cluster, const StopCheck& stopped);

// What the cluster does not come back to, as text. `files_before`: ChaosCluster::OpenFiles from
// before the faults. Errors: kCancelled when the run was interrupted before all was looked at.
absl::StatusOr<std::vector<std::string>> FindLeaks(ChaosCluster& cluster,
                                                   const ChaosTopology& topology,
                                                   const std::vector<int64_t>& files_before,
                                                   const StopCheck& stopped);

}  // namespace tandem::cli
