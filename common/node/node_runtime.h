// The shell around a NodeCore: it connects the core, which only decides, with threads, gRPC, the KV
// plane and the engine.
//
// clang-format off
//   thread       owns, does
//   engine       the resources, the core and the engine: takes events from the inbox, gives them to
//                the core, runs engine steps, sends the core's actions
//   transfer     the KV plane (TransferService)
//   storage      KV blocks in host memory and on disk (StorageService), if the node has any
//   lending      answers other nodes' questions about lent blocks (LendingService), if it lends
//   heartbeat    connects to routers, sends load reports (Heartbeats); never waits for `engine`
//   gRPC         parse routers' messages, push them into the inbox
//   constraints  compiles constraints on answers; commands that need one wait in the ConstraintGate
// clang-format on
//
// Invariant: every transfer command of the core reaches the KV plane, in order.
// Thread safety: any thread calls public methods; the owner alone calls Start and the destructor.
// Owner: NodeProcess.
#pragma once

#include <grpcpp/security/credentials.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/engine.h"
#include "common/guided/constraint_cache.h"
#include "common/node/node_core.h"
#include "common/node/node_resources.h"
#include "common/storage/block_tiers.h"
#include "common/transfer/transfer_service.h"

namespace tandem::node {

struct NodeRuntimeOptions {
  NodeId node_id;
  Incarnation incarnation;
  std::string host;  // equal for processes that share memory
  std::string version;
  std::string block_names;           // as registered: of the core's kv::BlockKey
  std::vector<std::string> routers;  // host:port of each router's fleet service
  // How routers are dialled (common/rpc/fleet_tls.h); null: without TLS.
  std::shared_ptr<grpc::ChannelCredentials> router_credentials;
  absl::Duration heartbeat_interval = absl::Seconds(1);
  // When there is work and no engine step has ended well for this long, the node is not live
  // (step_progress.h).
  absl::Duration progress_deadline = absl::Seconds(120);
  int64_t inbox_max = 65536;
  transfer::TransferServiceOptions transfer;
  // The core's too: the ConstraintGate fills it before a command reaches the core, so that the
  // engine thread finds each constraint compiled. May be null.
  std::shared_ptr<guided::ConstraintCache> constraints;
  // 0: the node neither lends nor borrows. REQUIRES: the core has the same limit.
  int64_t lend_blocks_max = 0;
  double lend_compute_share = 0.5;
  std::string lending_host;  // an IP address for debtors of other hosts; empty: of this host only
  // The processor that the engine thread, the first of the compute threads, stays on; none: any.
  std::optional<int32_t> engine_processor;
};

// What a node runs on. `storage` may be null: the node keeps KV in memory only.
struct NodeParts {
  std::unique_ptr<NodeResources> resources;
  std::unique_ptr<NodeCore> core;          // of `resources`
  std::unique_ptr<engine::Engine> engine;  // its KV is allocated
  std::unique_ptr<transfer::KvTransport> transport;
  std::unique_ptr<storage::BlockTiers> storage;
};

class NodeRuntime {
 public:
  // Starts all threads; routers are joined in the background.
  static absl::StatusOr<std::unique_ptr<NodeRuntime>> Start(const NodeRuntimeOptions& options,
                                                            NodeParts parts);
  // Stops all threads; legs still running end without events.
  virtual ~NodeRuntime() = default;

  // Refuses new legs and waits until the node is idle, at most `timeout`. True when idle.
  virtual bool Drain(absl::Duration timeout) = 0;
  // Whether an engine step ended well recently, or there is nothing to compute and steps do not
  // all fail.
  virtual bool live() const = 0;
  // At least one router accepted this node and it is not draining.
  virtual bool ready() const = 0;
  // Why a router refused this node for good (another model, another numerics id); OK otherwise.
  virtual absl::Status refused() const = 0;
};

}  // namespace tandem::node
