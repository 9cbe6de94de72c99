// A running local cluster: processes of their own, or threads of this one.
// Thread safety: by its owner.
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
  // Where the first router serves clients; empty until it does.
  virtual std::string grpc_address() const = 0;
  // Where every router does, comma-separated.
  virtual std::string grpc_addresses() const = 0;
  // Where nodes join them, likewise.
  virtual std::string fleet_addresses() const = 0;
  // Where they serve HTTP, comma-separated; empty when they do not.
  virtual std::string http_addresses() const = 0;
  // Moves starting and supervision on; call every 50 ms or so. An error means that the cluster
  // cannot go on (it names the process and why).
  virtual absl::Status Watch(absl::Time now) = 0;
  // Routers finish running requests, then nodes end. True when nothing was cut off.
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
