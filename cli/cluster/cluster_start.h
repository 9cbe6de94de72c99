// Starts a local cluster as configured, and tells when it is ready.
// Thread safety: the calling thread only. Owner: the command.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "cli/client/client.h"
#include "cli/cluster/cluster.h"

namespace tandem::cli {

// In processes of their own, whose programs lie beside this one, or in this process, as `up` says.
absl::StatusOr<std::unique_ptr<Cluster>> StartCluster(
    const UpConfig& up, const std::map<std::string, std::string>& env);

class ReadyProbe {
 public:
  // `up` outlives it.
  explicit ReadyProbe(const UpConfig& up) : up_(up) {}
  // Whether every node of `cluster` is ready at its first router. Takes a second at most.
  bool IsReady(const Cluster& cluster);

 private:
  const UpConfig& up_;
  std::unique_ptr<Client> client_;
};

}  // namespace tandem::cli
