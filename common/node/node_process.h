// A whole node, built from its configuration and running: engine, KV cache, core, runtime and
// health server. Thread safety: none; one thread at a time. Owner: a main, or the one-process
// cluster.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/engine/engine.h"
#include "common/guided/constraint_cache.h"
#include "common/node/node_config.h"
#include "common/node/node_core.h"
#include "common/node/node_resources.h"
#include "common/node/node_runtime.h"

namespace tandem::node {

// What makes a node of one kind.
struct NodeKind {
  std::string program;  // "tandem-prefill-node"
  std::string purpose;  // one line for --help
  std::string role;     // "prefill": the default id's first part
  // The core takes over `resources`, which outlive it.
  std::function<std::unique_ptr<NodeCore>(NodeResources& resources)> new_core;
};

class NodeProcess {
 public:
  // Loads, allocates and starts. `env` resolves model names.
  // Errors: as the engine's and checkpoint's; kUnavailable when the health port is taken.
  static absl::StatusOr<std::unique_ptr<NodeProcess>> Start(
      const NodeConfig& config, const NodeKind& kind, const std::map<std::string, std::string>& env,
      std::unique_ptr<transfer::KvTransport> transport);
  virtual ~NodeProcess() = default;

  // Refreshes the health service; call every second or so. An error ends the process: a router
  // refused this node for good.
  virtual absl::Status Watch() = 0;
  // Takes no more work and waits for running work, at most the drain timeout. True when all of it
  // ended in time.
  virtual bool Drain() = 0;
  virtual const std::string& id() const = 0;
};

// A node's whole main: parse, start, run until SIGTERM or SIGINT, drain. Returns the exit code.
int NodeMain(int argc, char** argv, const NodeKind& kind);

}  // namespace tandem::node
