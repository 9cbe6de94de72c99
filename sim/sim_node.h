// A node in the simulator: the production core, KV plane and hash engine, connected as NodeRuntime
// connects them. A delay in both directions stands for the queues between the engine thread and the
// transfer thread. Thread safety: none; the simulation's thread. Owner: the simulation.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/node/node_core.h"
#include "common/transfer/kv_transfer_endpoint.h"
#include "sim/checkers/ownership_checker.h"
#include "sim/checkers/salt_checker.h"
#include "sim/control_stream.h"
#include "sim/world/process.h"
#include "sim/world/schedule.h"
#include "sim/world/violations.h"
#include "sim/world/virtual_network.h"

namespace tandem::sim {

struct SimNodeOptions {
  v1::NodeRole role = v1::NODE_ROLE_DECODE;
  Topology topology;
  std::function<std::vector<std::vector<TokenId>>(const std::string& request_id)> whole_sequences;
  std::function<const SaltChecker*(const std::string& node)> salt_of;  // nullptr: not yet started
};

class SimNode final : public Process {
 public:
  SimNode(World& world, VirtualNetwork& network, int id, std::string name,
          absl::Duration clock_offset, const SimNodeOptions& options, RunLog& log);

  // The stream outlives the node.
  void AddStream(ControlStream& stream) { streams_.push_back(&stream); }

  // REQUIRES: alive, for the next five.
  const node::NodeCore& core() const { return *core_; }
  const transfer::KvTransferEndpoint& endpoint() const { return *endpoint_; }
  KvTransferStates kv_transfer_states() const { return ownership_->states(); }
  // What requests of each cache salt left, or may have left, here. REQUIRES: was started once.
  const SaltChecker& salt() const { return *salt_; }
  // Rows that the engine has computed since the simulation began.
  int64_t rows_computed() const { return rows_computed_; }
  // The longest step, by the costed clock, that held rows of prompts and generated ones.
  int64_t mixed_step_us_max() const { return mixed_step_us_max_; }
  int64_t blocks_adopted() const { return alive() ? core_->counters().blocks_adopted() : 0; }
  int64_t blocks_fetched() const { return alive() ? core_->counters().blocks_fetched() : 0; }
  // As SIGTERM does. The process ends when it is idle, or after the drain timeout.
  void BeginDrain();
  bool draining() const { return drain_ends_.has_value(); }
  // Flips a bit of one of its KV blocks.
  void CorruptBlock();

  void OnStreamOpened(ControlStream& stream);
  void OnRouterMessage(ControlStream& stream, const v1::RouterMessage& message);
  void OnStreamEnded(ControlStream& stream);

 protected:
  void OnStart() override;
  void OnCrash() override;

 private:
  absl::Duration drain_timeout() const { return absl::Microseconds(options_.topology.drain_us); }
  void MakeCore();
  v1::NodeMessage MakeRegistration() const;
  void Tick();
  void Pump();
  void SendEvents(node::NodeActions& actions);
  // From the engine thread to the transfer thread and back, in order.
  void ToPlane(transfer::TransferCommand command);
  void FromPlane();
  void Hop(absl::Time& free_at, Action action);
  void StartStep();
  // What a step costs where row_us is not 0.
  cost::StepProfile StepClock() const;
  absl::Duration StepTime();  // of step_
  void FinishStep();

  VirtualNetwork& network_;
  const SimNodeOptions options_;
  RunLog& log_;
  std::vector<ControlStream*> streams_;

  // State of this life of the process.
  Incarnation incarnation_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<VirtualTransport> transport_;
  std::unique_ptr<transfer::KvTransferEndpoint> endpoint_;
  std::unique_ptr<node::NodeCore> core_;
  std::optional<OwnershipChecker> ownership_;
  std::optional<SaltChecker> salt_;
  std::map<ControlStream*, node::RouterKey> routers_;  // never walked: pointers have no order
  uint64_t next_router_ = 1;
  absl::Span<const engine::SequenceSlice> step_;
  bool stepping_ = false;
  absl::Time to_plane_free_, from_plane_free_, next_heartbeat_;
  std::optional<absl::Time> drain_ends_;
  int64_t rows_computed_ = 0;
  int64_t mixed_step_us_max_ = 0;
};

}  // namespace tandem::sim
