// The part of a node that decides: a state machine over the node's NodeResources. Its inputs are
// routers' commands, the KV plane's events, finished engine steps and the time; its outputs are
// events for routers, commands for the KV plane and the next engine step. DecodeCore and
// PrefillCore implement it; NodeRuntime (threads, gRPC, UCX) and the simulator drive it. It has no
// thread, clock, socket or random device. Thread safety: none; the engine thread (or the simulator)
// makes every call. Owner: NodeRuntime, or the simulator.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/engine/engine.h"
#include "common/lending/lending.h"
#include "common/storage/block_storage.h"
#include "common/transfer/kv_transfer.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::node {

// One connection of one router; a router that reconnects gets a new key.
using RouterKey = StrongId<struct RouterKeyTag, uint64_t>;

// What the core's driver shall do: NodeResources::TakeActions. Order within each vector matters;
// the vectors are independent.
struct NodeActions {
  std::vector<std::pair<RouterKey, v1::NodeEvent>> events;
  std::vector<v1::NodeEvent> broadcast;  // to every router: blocks stored and removed, draining
  // The driver carries these out before `transfer`: a loan's blocks may then be given to others.
  std::vector<lending::LendingCommand> lending;
  std::vector<transfer::TransferCommand> transfer;
  std::vector<storage::StorageCommand> storage;
  bool empty() const {
    return events.empty() && broadcast.empty() && lending.empty() && transfer.empty() &&
           storage.empty();
  }
  // Keeps the memory.
  void clear() {
    events.clear();
    broadcast.clear();
    lending.clear();
    transfer.clear();
    storage.clear();
  }
  void swap(NodeActions& other) {
    events.swap(other.events);
    broadcast.swap(other.broadcast);
    lending.swap(other.lending);
    transfer.swap(other.transfer);
    storage.swap(other.storage);
  }
};

class NodeCore {
 public:
  virtual ~NodeCore() = default;

  virtual v1::NodeRole role() const = 0;

  virtual void OnRouterJoined(RouterKey router, absl::Time now) = 0;
  // The router is gone: ends its legs now. The blocks of leases that are still open stay
  // quarantined until LeaseDrained.
  virtual void OnRouterLost(RouterKey router, absl::Time now) = 0;
  // Never fails: a bad command is answered with Refused or LegFailed.
  virtual void OnCommand(RouterKey router, const v1::NodeCommand& command, absl::Time now) = 0;
  virtual void OnTransfer(const transfer::TransferEvent& event, absl::Time now) = 0;
  virtual void OnLending(const lending::LendingEvent& event, absl::Time now) = 0;
  virtual void OnStorage(const storage::StorageEvent& event, absl::Time now) = 0;
  // Deadlines. At least every 50 ms.
  virtual void OnTick(absl::Time now) = 0;

  // The next step's slices, empty when there is nothing to compute. The spans stay valid until
  // OnStepDone, which must follow before the next PlanStep; other calls may come in between (an
  // abort takes effect at OnStepDone).
  virtual absl::Span<const engine::SequenceSlice> PlanStep(absl::Time now) = 0;
  // Whether PlanStep has more to do for sequences that take no part in the step that it planned:
  // their constraints read and compute a bounded time at each call. If it planned none, it is to be
  // called again at once.
  virtual bool preparing() const = 0;
  // During the step, on the engine thread: a layer's KV is written. Only appends to actions.
  virtual void OnLayerDone(int layer) = 0;
  // `result`: one token per sampling slice, or why the step failed (its legs then fail, the node
  // goes on).
  virtual void OnStepDone(const absl::StatusOr<std::vector<engine::SampledToken>>& result,
                          absl::Time now) = 0;

  virtual v1::NodeLoad load() const = 0;
  // Blocks, leases, exports and debts together, as FreedRoom::HeldBy counts them in load(); costs
  // less than a load, so that a driver can ask after every event.
  virtual int64_t held() const = 0;
  // Blocks of running sequences that other nodes could keep; 0 on a node that does not borrow.
  virtual int64_t blocks_lendable() const = 0;

  // Refuses new legs from now on; running legs go on. Offers prefix blocks to peers for
  // `time_left`.
  virtual void BeginDrain(absl::Time now, absl::Duration time_left) = 0;
  // Fails legs that may still run for long, so that their routers place them on other nodes, and
  // sends their KV there when a router asks for it within `time_left`. REQUIRES: BeginDrain.
  virtual void StartMigration(absl::Time now, absl::Duration time_left) = 0;
  // No leg, lease, export or quarantined block is left, the node's resources included.
  virtual bool idle() const = 0;
};

}  // namespace tandem::node
