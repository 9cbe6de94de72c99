// A running local cluster. Each router and node is a process of its own, or threads of this
// process.
//
// Thread safety: the owner's thread only. Owner: the command that started the cluster.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/cluster/cluster_plan.h"
#include "common/runtime/processors.h"

namespace tandem::cli {

class Cluster {
 public:
  virtual ~Cluster() = default;
  // The gRPC address of the first router; empty until that router serves clients.
  virtual std::string grpc_address() const = 0;
  // The gRPC addresses of all routers, comma-separated.
  virtual std::string grpc_addresses() const = 0;
  // The addresses where nodes join the routers, comma-separated.
  virtual std::string fleet_addresses() const = 0;
  // The HTTP addresses of the routers, comma-separated; empty when none serves HTTP.
  virtual std::string http_addresses() const = 0;
  // The addresses of the routers' ports for operators, comma-separated; empty when they have none.
  virtual std::string admin_addresses() const = 0;
  // Starts the nodes once the routers serve, and restarts processes that ended. Call it about every
  // 50 ms. Errors: the cluster cannot go on; the message names the process and the reason.
  virtual absl::Status Watch(absl::Time now) = 0;
  // Stops the cluster: routers finish their running requests, then nodes end. Returns true when
  // every request could finish.
  virtual bool Drain() = 0;
};

// `binaries`: the folder of tandem-router and the node programs. The processes' log lines, prefixed
// with their names, go to standard error unless up.quiet.
absl::StatusOr<std::unique_ptr<Cluster>> StartProcessCluster(const UpConfig& up,
                                                             const std::string& binaries,
                                                             const Processors& processors);
absl::StatusOr<std::unique_ptr<Cluster>> StartSingleProcessCluster(
    const UpConfig& up, const Processors& processors,
    const std::map<std::string, std::string>& env);

}  // namespace tandem::cli
