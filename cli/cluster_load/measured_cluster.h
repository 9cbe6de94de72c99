// A local cluster that answers loads, one after another, over gRPC.
// Thread safety: the calling thread only. Owner: the command that measures.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench_serve/load_run.h"
#include "cli/bench_serve/workload.h"
#include "cli/cluster/cluster.h"
#include "cli/cluster/cluster_plan.h"
#include "cli/cluster/fleet_secret.h"

namespace tandem::cli {

class MeasuredCluster {
 public:
  // Waits, at most as long as said, for a reason to give up; whether there is one.
  using ShouldStop = std::function<bool(absl::Duration)>;

  // Returns when every node is ready. Errors: the cluster did not start, or ended; kCancelled when
  // should_stop said so; kDeadlineExceeded after up.ready_timeout.
  static absl::StatusOr<std::unique_ptr<MeasuredCluster>> Start(
      const UpConfig& up, const std::map<std::string, std::string>& env, ShouldStop should_stop);

  // Errors: the cluster ended; kCancelled when should_stop said so. Requests that failed are
  // records of the result.
  absl::StatusOr<LoadResult> Run(const LoadOptions& load, Workload& workload,
                                 const std::function<void(const LoadProgress&)>& on_progress);
  // For requests that the caller sends itself.
  std::string grpc_address() const { return cluster_->grpc_address(); }
  // Errors: the cluster ended; kCancelled when should_stop said so.
  absl::Status CheckRunning();
  // Lets running requests finish and stops the cluster.
  void Drain() { cluster_->Drain(); }

 private:
  MeasuredCluster(const UpConfig& up, ShouldStop should_stop)
      : up_(up), should_stop_(std::move(should_stop)), context_(1) {}
  absl::Status AwaitReady();

  UpConfig up_;
  const ShouldStop should_stop_;
  std::unique_ptr<FleetSecret> secret_;
  std::unique_ptr<Cluster> cluster_;
  boost::asio::io_context context_;
  std::unique_ptr<LoadTarget> target_;
};

}  // namespace tandem::cli
