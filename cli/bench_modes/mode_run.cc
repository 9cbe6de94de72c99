#include "cli/bench_modes/mode_run.h"

#include <boost/asio/io_context.hpp>
#include <memory>

#include "absl/strings/str_cat.h"
#include "cli/bench_serve/load_target.h"
#include "cli/cluster/cluster_start.h"
#include "cli/cluster/fleet_secret.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

// Returns when every node is ready.
absl::Status AwaitReady(Cluster& cluster, const ModeRun& run) {
  ReadyProbe probe(run.up);
  const absl::Time deadline = RealClock().Now() + run.up.ready_timeout;
  while (!probe.IsReady(cluster)) {
    if (run.should_stop(absl::Milliseconds(50))) return Interrupted();
    const absl::Time now = RealClock().Now();
    RETURN_IF_ERROR(cluster.Watch(now));
    if (now > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the cluster was not ready within ",
                                                      absl::FormatDuration(run.up.ready_timeout)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<LoadResult> RunMode(const ModeRun& run,
                                   const std::map<std::string, std::string>& env) {
  UpConfig up = run.up;
  std::unique_ptr<FleetSecret> secret;
  if (up.common.fleet_secret_file.empty()) {
    ASSIGN_OR_RETURN(secret, FleetSecret::Create());
    up.common.fleet_secret_file = secret->path();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<Cluster> cluster, StartCluster(up, env));
  RETURN_IF_ERROR(AwaitReady(*cluster, run));
  TargetOptions target_options;
  ASSIGN_OR_RETURN(target_options.address,
                   ParseTarget(absl::StrCat("grpc://", cluster->grpc_address())));
  boost::asio::io_context context(1);
  ASSIGN_OR_RETURN(const std::unique_ptr<LoadTarget> target,
                   NewGrpcTarget(target_options, context));
  absl::Status watched;
  const LoadHooks hooks = {.should_stop =
                               [&] {
                                 watched = cluster->Watch(RealClock().Now());
                                 return !watched.ok() || run.should_stop(absl::ZeroDuration());
                               },
                           .on_progress = run.on_progress};
  const std::unique_ptr<Workload> workload = NewSyntheticWorkload(run.workload);
  ASSIGN_OR_RETURN(LoadResult result, RunLoad(run.load, context, *target, *workload, hooks));
  RETURN_IF_ERROR(watched);
  if (result.interrupted) return Interrupted();
  cluster->Drain();
  for (const RequestRecord& record : result.records)
    if (record.ok()) return result;
  return absl::UnavailableError(
      result.records.empty()
          ? "no request was sent"
          : absl::StrCat("no request was answered: ", result.records.front().error, ": ",
                         result.records.front().message));
}

}  // namespace tandem::cli
