// A cluster in virtual time: the shipping router core, node cores, hand-off endpoints and hash
// engines, joined by virtual links. Nothing of theirs is copied; this file only carries messages.
// Thread safety: none.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/hash_engine.h"
#include "common/node/node_core.h"
#include "common/transfer/handoff_endpoint.h"
#include "router/router_core.h"
#include "sim/virtual_network.h"
#include "sim/world.h"

namespace tandem::sim {

struct SimClusterOptions {
  int prefill_nodes = 1;
  int decode_nodes = 1;
  int64_t blocks_per_node = 256;
  int64_t max_batch_tokens = 64;
  int32_t max_sequences = 16;
  engine::HashEngineOptions engine;
  NetworkFaults kv_faults;
  absl::Duration control_delay_max = absl::Microseconds(500);  // node ↔ router messages, in order
  absl::Duration step_time_max = absl::Milliseconds(2);
  router::RouterOptions router;
};

// What a client of the cluster has seen.
struct ClientView {
  std::vector<TokenId> tokens;
  bool out_of_order = false;
  int ends = 0;
  absl::Status status;       // of RequestFailed
  router::RequestDone done;  // of RequestDone
};

class SimNode;

class SimCluster {
 public:
  SimCluster(World& world, const SimClusterOptions& options);
  ~SimCluster();

  // Hands a request to the router now.
  absl::Status Submit(router::RequestInput input);
  void Cancel(const RequestId& id);
  const ClientView& client(const RequestId& id) { return clients_[id]; }
  bool Settled(const RequestId& id) { return clients_[id].ends > 0; }

  router::RouterCore& router() { return *router_; }
  std::vector<SimNode*> nodes();
  const VirtualNetwork& network() const { return network_; }

 private:
  friend class SimNode;
  void PumpRouter();
  void TickRouter();
  void FromNode(router::NodeKey node, v1::NodeMessage message);
  // Delivers after a delay, never before an earlier message of the same link.
  void SendInOrder(absl::Time& link_free, absl::AnyInvocable<void()> deliver);

  World& world_;
  const SimClusterOptions options_;
  VirtualNetwork network_;
  std::unique_ptr<router::RouterCore> router_;
  std::map<router::NodeKey, std::unique_ptr<SimNode>> nodes_;
  std::map<RequestId, ClientView> clients_;
};

class SimNode {
 public:
  SimNode(SimCluster& cluster, router::NodeKey key, v1::NodeRole role, const std::string& name);

  void Join();
  void OnRouterMessage(const v1::RouterMessage& message);
  node::NodeCore& core() { return *core_; }
  transfer::HandoffEndpoint& endpoint() { return *endpoint_; }
  const std::string& name() const { return name_; }

 private:
  friend class SimCluster;
  // Carries actions and events between core, endpoint and router until nothing is left, then starts
  // a step.
  void Pump();
  void StartStep();
  void FinishStep();
  void Tick();
  void SendLoad();

  SimCluster& cluster_;
  const router::NodeKey key_;
  const std::string name_;
  const Incarnation incarnation_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<VirtualTransport> transport_;
  std::unique_ptr<transfer::HandoffEndpoint> endpoint_;
  std::unique_ptr<node::NodeCore> core_;
  absl::Span<const engine::SequenceSlice> step_;
  bool stepping_ = false;
  bool pumping_ = false;
  absl::Time to_router_free_, to_node_free_;
};

}  // namespace tandem::sim
