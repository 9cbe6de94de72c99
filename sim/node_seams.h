// The seams of a simulated node: what one simulation chooses and another chooses otherwise.
//
//                    the swarm (simulation.cc)          a trace (sim/trace/)
//   engine           hash engine, bytes in blocks       tokens without bytes
//   KV plane         shipping endpoint, frames          the time that a transfer takes
//   storage          bytes, at random times, faults     names, and the time that a copy takes
//   step clock       random, or rows at a fixed price   a cost model
//   checkers         on                                 off
//   inbox            at once, for more orders           waits for the running step, as in a process
//
// Thread safety: plain values; their functions run on the simulation's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "common/cost/step_cost.h"
#include "common/engine/engine.h"
#include "common/kv/block_hash.h"
#include "sim/checkers/ownership_checker.h"
#include "sim/kv_plane.h"
#include "sim/node_storage.h"
#include "sim/world/process.h"

namespace tandem::sim {

// What a KV plane is made for.
struct KvPlaneSite {
  Process& process;
  Incarnation incarnation;
  engine::Engine& engine;               // its KV is allocated
  LandingObserver* observer = nullptr;  // null without checkers
  std::function<void()> on_activity;    // call it when TakeEvents has something new
};

// How often a node looks at its deadlines; at most 50 ms.
inline constexpr absl::Duration kTickInterval = absl::Milliseconds(20);
inline constexpr absl::Duration kHeartbeatInterval = absl::Milliseconds(100);

struct NodeSeams {
  // Called at each start of the process.
  std::function<std::unique_ptr<engine::Engine>()> engine;
  std::function<std::unique_ptr<KvPlane>(KvPlaneSite site)> kv_plane;
  // Called once; what it returns outlives the process. Not set, or null: there is no storage.
  std::function<std::unique_ptr<NodeStorage>(StorageSite site)> storage;
  // How long a step of this shape takes.
  std::function<absl::Duration(const cost::StepShape& shape)> step_time;
  // What a probe at the node's start measures (common/node/step_probe.h); none = it measures
  // nothing, and the first steps teach the node's cost model.
  std::optional<cost::StepProfile> probed;
  kv::BlockKey block_key;  // the routers', too
  absl::Duration tick_interval = kTickInterval;
  absl::Duration heartbeat_interval = kHeartbeatInterval;
  // Whether what comes during a step waits for its end, as for a process's engine thread.
  bool inbox_waits = false;
  absl::Duration between_steps;  // what the node itself does takes, after each step
  bool one_host = true;          // all nodes report one host; otherwise each its own
  bool checked = true;           // checkers watch the node: blocks' owners, cache salts, bounds
};

}  // namespace tandem::sim
