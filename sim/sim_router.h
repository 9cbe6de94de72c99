// A router in the simulator: the production RouterCore, with its streams to nodes and its clients.
// Thread safety: none; the simulation's thread. Owner: the simulation.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "router/core/router_core.h"
#include "sim/control_stream.h"
#include "sim/world/process.h"
#include "sim/world/violations.h"

namespace tandem::sim {

struct SimRouterOptions {
  router::RouterOptions core;
  router::ModelIdentity model;
  absl::Duration tick_interval = absl::Milliseconds(20);  // at most 50 ms
  bool checked = true;                                    // the bounds checker watches the router
  int64_t requests_max = 0, sequences_max = 0;            // that the checkers allow
};

class SimRouter final : public Process {
 public:
  using ClientSink =
      std::function<void(SimRouter& router, const RequestId& id, const router::ClientEvent& event)>;

  SimRouter(World& world, int id, std::string name, absl::Duration clock_offset,
            const SimRouterOptions& options, RunLog& log, ClientSink clients)
      : Process(world, id, std::move(name), clock_offset),
        options_(options),
        log_(log),
        clients_(std::move(clients)) {}

  // The stream outlives the router.
  void AddStream(ControlStream& stream) { all_streams_.push_back(&stream); }
  // How long a call of a client is on its way.
  absl::Duration CallDelay() const { return absl::Microseconds(50) * slowness(); }

  // REQUIRES: alive, for the next two.
  absl::Status Submit(router::RequestInput input);
  void Finish(const RequestId& id);
  const router::RouterCore& core() const { return *core_; }

  void OnStreamOpened(ControlStream& stream, uint64_t connection);
  void OnNodeMessage(ControlStream& stream, const v1::NodeMessage& message);
  void OnStreamEnded(ControlStream& stream, uint64_t connection);

 protected:
  void OnStart() override;
  void OnCrash() override;

 private:
  void Tick();
  void Pump();

  const SimRouterOptions options_;
  RunLog& log_;
  const ClientSink clients_;
  std::vector<ControlStream*> all_streams_;
  std::unique_ptr<router::RouterCore> core_;
  std::map<ControlStream*, router::NodeKey> keys_;  // of the current connection
  std::map<router::NodeKey, ControlStream*> streams_;
  uint64_t next_key_ = 1;
  router::RouterActions actions_;  // that Pump carries out; between calls only memory
};

}  // namespace tandem::sim
