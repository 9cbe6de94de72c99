// Holds back routers' commands whose constraint this node has not compiled yet, so that neither the
// stream's thread nor the engine's thread compiles it. Later commands of a held leg (an abort, say)
// wait with it, because a leg's commands act in order; all other commands pass.
//
// Thread safety: any thread. `release` runs on the queue's thread or on Filter's; it must not call
// the gate.
// Owner: NodeRuntime.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "common/guided/compile_queue.h"
#include "common/guided/constraint_cache.h"
#include "common/node/node_core.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::node {

class ConstraintGate {
 public:
  using Release = std::function<void(RouterKey, v1::RouterMessage)>;

  // `constraints` is not null. `release` takes the commands of a leg when they may go on.
  ConstraintGate(std::shared_ptr<guided::ConstraintCache> constraints, Release release);

  // Takes out of `message` the commands that must wait. When too many constraints wait, compiles on
  // the calling thread instead: the stream then waits.
  void Filter(RouterKey router, v1::RouterMessage& message);
  // Drops what waits of this router.
  void OnRouterLost(RouterKey router);

 private:
  using Leg = std::pair<RouterKey, uint64_t>;  // by the leg's number

  // True when the command waits; it is moved from then.
  bool Hold(RouterKey router, v1::NodeCommand& command);
  void OnCompiled(const Leg& leg);

  const std::shared_ptr<guided::ConstraintCache> constraints_;  // shared with the node's core
  const Release release_;
  absl::Mutex mutex_;
  // Bound: guided::CompileQueue::kWaitersMax legs; a leg has a handful of commands.
  absl::flat_hash_map<Leg, std::vector<v1::NodeCommand>> held_ ABSL_GUARDED_BY(mutex_);
  guided::CompileQueue queue_;  // last: its thread uses the others
};

}  // namespace tandem::node
