// A node in the simulator: the production core with an engine and a KV plane behind seams,
// connected as NodeRuntime connects them. A delay in both directions stands for the queues between
// the engine thread and the transfer thread. Thread safety: none; the simulation's thread. Owner:
// the simulation.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/node/freed_room.h"
#include "common/node/node_core.h"
#include "common/node/node_resources.h"
#include "sim/checkers/debt_checker.h"
#include "sim/checkers/ownership_checker.h"
#include "sim/checkers/salt_checker.h"
#include "sim/control_stream.h"
#include "sim/node_seams.h"
#include "sim/node_storage.h"
#include "sim/sim_lending.h"
#include "sim/world/process.h"
#include "sim/world/schedule.h"
#include "sim/world/violations.h"

namespace tandem::sim {

struct SimNodeOptions {
  v1::NodeRole role = v1::NODE_ROLE_DECODE;
  Topology topology;
  NodeSeams seams;
  // For the checkers.
  std::function<std::vector<std::vector<TokenId>>(const std::string& request_id)> whole_sequences;
  std::function<const SaltChecker*(const std::string& node)> salt_of;  // nullptr: not yet started
  // Of `node`, for process `from`.
  std::function<SimLending::Reached(int from, const std::string& node)> lending_of;
  // Whom a node owes memory now; for the checkers.
  CreditorsOf creditors_of;
  std::function<bool()> all_served;  // as CheckDrained wants it
};

// What a node's engine has computed since the simulation began.
struct NodeWork {
  int64_t steps = 0, prompt_rows = 0, generated_rows = 0;
  absl::Duration busy;
  absl::Duration mixed_step_max;  // the longest step that held rows of both kinds

  void Add(const cost::StepShape& shape, absl::Duration time) {
    ++steps;
    prompt_rows += shape.prompt_rows;
    generated_rows += shape.generated_rows;
    busy += time;
    if (shape.prompt_rows > 0 && shape.generated_rows > 0)
      mixed_step_max = std::max(mixed_step_max, time);
  }
};

class SimNode final : public Process {
 public:
  SimNode(World& world, int id, std::string name, absl::Duration clock_offset,
          SimNodeOptions options, RunLog& log);

  // The stream outlives the node.
  void AddStream(ControlStream& stream) { streams_.push_back(&stream); }

  // REQUIRES: alive, for the next four.
  const node::NodeCore& core() const { return *core_; }
  const node::NodeResources& resources() const { return *resources_; }
  const KvPlane& plane() const { return *plane_; }
  // Zero without checkers.
  KvTransferStates kv_transfer_states() const {
    return ownership_ ? ownership_->states() : KvTransferStates();
  }
  // What requests of each cache salt left, or may have left, here. REQUIRES: was started once,
  // with checkers.
  const SaltChecker& salt() const { return *salt_; }
  const NodeWork& work() const { return work_; }
  // Null unless the topology lends. REQUIRES: alive.
  SimLending* lending() { return lending_.get(); }
  // Whether this node is one end of a loan. REQUIRES: alive, and the topology lends.
  bool has_loans() const {
    return !lending_->idle() || !resources_->lender().idle() || !resources_->borrower().idle();
  }
  int64_t blocks_adopted() const { return alive() ? resources_->counters().blocks_adopted() : 0; }
  int64_t blocks_fetched() const { return alive() ? resources_->counters().blocks_fetched() : 0; }
  int64_t part_tokens_fetched() const {
    return alive() ? resources_->counters().part_tokens_fetched() : 0;
  }
  // Ever, by all of its processes.
  int64_t loans_asked() const { return loans_asked_; }
  int64_t postponed() const { return alive() ? resources_->scheduler().postponed() : 0; }
  int64_t units_lent() const { return alive() ? resources_->counters().units_lent() : 0; }
  int64_t loans_lost() const { return alive() ? resources_->counters().loans_lost() : 0; }
  int64_t units_regained() const { return alive() ? resources_->counters().units_regained() : 0; }
  // Of sequences that lost loans and kept the rest.
  node::SequenceScheduler::Rebuilds rebuilds() const {
    return alive() ? resources_->scheduler().rebuilds() : node::SequenceScheduler::Rebuilds();
  }
  int64_t loans_moved() const { return alive() ? resources_->counters().loans_moved() : 0; }
  int64_t loans_home() const { return alive() ? resources_->counters().loans_home() : 0; }
  int64_t loans_taken_over() const {
    return alive() ? resources_->counters().loans_taken_over() : 0;
  }
  int64_t blocks_read_from_host() const {
    return alive() ? resources_->counters().host_memory().blocks_read() : 0;
  }
  int64_t loads_given_up() const { return alive() ? resources_->counters().loads_given_up() : 0; }
  int64_t blocks_loaded() const { return alive() ? resources_->counters().blocks_loaded() : 0; }
  // As SIGTERM does. The process ends when it is idle, or after the drain timeout.
  void BeginDrain();
  bool draining() const { return drain_ends_.has_value(); }
  // Flips a bit of one of its KV blocks, in memory or in its storage.
  void CorruptBlock();
  // Its storage, if it has one, carries out nothing for so long.
  void HangStorage(absl::Duration time) {
    if (storage_ != nullptr) storage_->Hang(time);
  }

  void OnStreamOpened(ControlStream& stream);
  void OnRouterMessage(ControlStream& stream, v1::RouterMessage message);
  void OnStreamEnded(ControlStream& stream);
  // A message that its router has read: a later one may use its memory.
  void Recycle(std::unique_ptr<v1::NodeMessage> message);

 protected:
  void OnStart() override;
  void OnCrash() override;

 private:
  absl::Duration drain_timeout() const { return absl::Microseconds(options_.topology.drain_us); }
  void MakeCore();
  v1::NodeMessage MakeRegistration() const;
  void Tick();
  void EndDrain();
  void Pump();
  void Dispatch();
  void SendEvents(node::NodeActions& actions);
  // Perhaps with the load of an earlier one.
  std::unique_ptr<v1::NodeMessage> NewMessage();
  // As NodeRuntime does: routers would not use the room until the next heartbeat otherwise.
  void AnnounceFreedRoom();
  // From the engine thread to the transfer thread and back, in order.
  void ToPlane(transfer::TransferCommand command);
  void FromPlane();
  std::unique_ptr<NodeStorage> MakeStorage();
  void Hop(absl::Time& free_at, Action action);
  void CheckSalts(const v1::NodeCommand& command);
  void MakeLending();
  // A block that another node's sequence needs must not change.
  void CheckLent();
  // Runs `action` now, or when the running step has ended (NodeSeams::inbox_waits).
  void WhenIdle(Action action);
  void OnCommands(ControlStream& stream, const v1::RouterMessage& message);
  void StartStep();
  absl::Duration StepTime();  // of step_
  void FinishStep();
  void EndStep();

  const SimNodeOptions options_;
  RunLog& log_;
  std::vector<ControlStream*> streams_;
  const std::unique_ptr<NodeStorage> storage_;  // null: none. It outlives the process.

  // State of this life of the process.
  Incarnation incarnation_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<KvPlane> plane_;
  std::unique_ptr<SimLending> lending_;
  std::unique_ptr<node::NodeResources> resources_;
  std::unique_ptr<node::NodeCore> core_;
  std::optional<OwnershipChecker> ownership_;
  std::optional<SaltChecker> salt_;
  // Pointers have no order, so no walk of it decides one: messages leave in the order of streams_.
  std::map<ControlStream*, node::RouterKey> routers_;
  uint64_t next_router_ = 1;
  node::FreedRoom freed_room_;
  bool load_sent_ = false;  // with other news, since the pump began
  absl::Span<const engine::SequenceSlice> step_;
  cost::StepShape step_shape_;  // of step_, as is step_time_
  absl::Duration step_time_;
  bool stepping_ = false;
  // Bound: what comes during one step.
  std::vector<Action> inbox_;
  node::NodeActions actions_;  // that Dispatch carries out; between calls only memory
  static constexpr size_t kSpareMessagesMax = 16;
  // Bound: kSpareMessagesMax.
  std::vector<std::unique_ptr<v1::NodeMessage>> spare_messages_;
  absl::Time to_plane_free_, from_plane_free_, from_disk_free_, from_lending_free_, next_heartbeat_;
  std::optional<absl::Time> drain_ends_;
  absl::Time drain_began_;  // in RunningTime
  NodeWork work_;
  int64_t loans_asked_ = 0;
};

}  // namespace tandem::sim
