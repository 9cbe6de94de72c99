#include "cli/cluster_load/measured_cluster.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "cli/bench_serve/load_target.h"
#include "cli/cluster/cluster_start.h"
#include "common/base/status_macros.h"
#include "common/runtime/clock.h"

namespace tandem::cli {
namespace {

absl::Status Interrupted() { return absl::CancelledError("interrupted"); }

}  // namespace

absl::StatusOr<std::unique_ptr<MeasuredCluster>> MeasuredCluster::Start(
    const UpConfig& up, const std::map<std::string, std::string>& env, ShouldStop should_stop) {
  std::unique_ptr<MeasuredCluster> started(new MeasuredCluster(up, std::move(should_stop)));
  if (up.common.fleet_secret_file.empty()) {
    ASSIGN_OR_RETURN(started->secret_, FleetSecret::Create());
    started->up_.common.fleet_secret_file = started->secret_->path();
  }
  ASSIGN_OR_RETURN(started->cluster_, StartCluster(started->up_, env));
  RETURN_IF_ERROR(started->AwaitReady());
  TargetOptions target;
  ASSIGN_OR_RETURN(target.address,
                   ParseTarget(absl::StrCat("grpc://", started->cluster_->grpc_address())));
  ASSIGN_OR_RETURN(started->target_, NewGrpcTarget(target, started->context_));
  return started;
}

absl::Status MeasuredCluster::AwaitReady() {
  ReadyProbe probe(up_);
  const absl::Time deadline = RealClock().Now() + up_.ready_timeout;
  while (!probe.IsReady(*cluster_)) {
    if (should_stop_(absl::Milliseconds(50))) return Interrupted();
    const absl::Time now = RealClock().Now();
    RETURN_IF_ERROR(cluster_->Watch(now));
    if (now > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("the cluster was not ready within ",
                                                      absl::FormatDuration(up_.ready_timeout)));
    }
  }
  return absl::OkStatus();
}

absl::Status MeasuredCluster::CheckRunning() {
  RETURN_IF_ERROR(cluster_->Watch(RealClock().Now()));
  return should_stop_(absl::ZeroDuration()) ? Interrupted() : absl::OkStatus();
}

absl::StatusOr<LoadResult> MeasuredCluster::Run(
    const LoadOptions& load, Workload& workload,
    const std::function<void(const LoadProgress&)>& on_progress) {
  absl::Status watched;
  const LoadHooks hooks = {.should_stop =
                               [&] {
                                 watched = cluster_->Watch(RealClock().Now());
                                 return !watched.ok() || should_stop_(absl::ZeroDuration());
                               },
                           .on_progress = on_progress};
  ASSIGN_OR_RETURN(LoadResult result, RunLoad(load, context_, *target_, workload, hooks));
  RETURN_IF_ERROR(watched);
  if (result.interrupted) return Interrupted();
  return result;
}

}  // namespace tandem::cli
