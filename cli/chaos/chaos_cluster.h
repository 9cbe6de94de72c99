// The processes of a chaos run: starts routers and nodes, kills and stops them, and starts them
// again. Thread safety: one thread at a time; router_addresses from any thread once Ready.
// Owner: the chaos command.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/chaos/fault_plan.h"
#include "cli/chaos/namespaces.h"
#include "cli/cluster/cluster_plan.h"
#include "common/runtime/processors.h"

namespace tandem::cli {

class ChaosCluster {
 public:
  struct Options {
    UpConfig up;           // engine, model, sizes
    std::string binaries;  // the folder of the programs
    std::string logs;      // a folder for the processes' logs; "" = discarded
    Processors processors;
    // Null: on loopback. Process i of the topology is port i + 1. Outlives the cluster.
    Namespaces* namespaces = nullptr;
  };
  // Everything is released within this time after its owner is gone, and routers know it.
  static constexpr absl::Duration kReleasedWithin = absl::Seconds(6);

  // Starts the routers and, once they serve, the nodes.
  static absl::StatusOr<std::unique_ptr<ChaosCluster>> Start(const Options& options);
  // Kills and reaps all processes.
  virtual ~ChaosCluster() = default;

  // Whether every router has every node ready. Errors: a process that ended, with its last log
  // line.
  virtual absl::StatusOr<bool> Ready() = 0;
  virtual std::vector<std::string> router_addresses() const = 0;
  virtual pid_t pid(int process) const = 0;  // 0 while it is down
  virtual void Signal(int process, int signal) = 0;
  // With `limited` the process can map 64 KiB more than now; otherwise any amount again. Returns
  // whether it runs.
  virtual bool LimitMemory(int process, bool limited) = 0;
  // Sends SIGKILL and waits for the end.
  virtual void Kill(int process) = 0;
  // REQUIRES: it is down.
  virtual absl::Status StartAgain(int process) = 0;
  // Processes that ended by themselves since the last call, and how. They are down now.
  struct Ended {
    int process;
    std::string how;
  };
  virtual std::vector<Ended> TakeEnded() = 0;

  // What routers and nodes hold for requests, as text; "" when they hold nothing.
  virtual std::string Holdings() = 0;
  // Open descriptors of each process; 0 while it is down.
  virtual std::vector<int64_t> OpenFiles() const = 0;
};

}  // namespace tandem::cli
