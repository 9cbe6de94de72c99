// The flags and the argument that name a public trace and say how its requests arrive: of
// `tandem sim trace`, which replays it in virtual time, and of `tandem bench trace`, which sends it
// to a cluster.
// Thread safety: none; used by the main thread. Owner: the command.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/schema.h"
#include "sim/trace/arrivals.h"
#include "sim/trace/workload_source.h"

namespace tandem::cli {

// Adds --speed, --requests and --spread, and the argument FILE. REQUIRES: `arrivals` outlives
// `schema`.
void RegisterTrace(config::Schema& schema, sim::ArrivalOptions& arrivals);

// The trace's path. kInvalidArgument, which says what a trace is, if there is none.
absl::StatusOr<std::string> TraceNamed(const std::vector<std::string>& positionals);

// Opens the trace at `path`, its arrivals changed as `arrivals` says. Errors: sim::OpenTrace's.
absl::StatusOr<std::unique_ptr<sim::WorkloadSource>> OpenTraceAs(
    const std::string& path, const sim::ArrivalOptions& arrivals);

}  // namespace tandem::cli
