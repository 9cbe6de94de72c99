// What a node tells all of its routers at intervals: its load, its counters, its tenants' blocks
// and what things cost here. The engine thread publishes what is to be told; the heartbeat thread
// sends it, and connects to the routers. So heartbeats never wait for a step.
//
// Thread safety: each method says which thread calls it. Bound: what is published is one report.
// Owner: NodeRuntime.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/bounded_queue.h"
#include "common/kv/block_owners.h"
#include "common/node/cost_report.h"
#include "common/node/freed_room.h"
#include "common/node/heartbeat_pace.h"
#include "common/node/node_resources.h"
#include "common/node/published_load.h"
#include "common/node/router_streams.h"
#include "common/runtime/thread.h"

namespace tandem::node {

class Heartbeats {
 public:
  struct Report {
    v1::NodeLoad load;
    v1::NodeCounters counters;
    // Bound: --kv-blocks.
    std::vector<kv::BlockOwners::Counts> owner_counts;
    int64_t blocks_lendable = 0;
  };

  // `interval`: until a router asks for another.
  explicit Heartbeats(absl::Duration interval) : pace_(interval) {}
  ~Heartbeats() { Stop(); }

  // ---- the owner
  // Starts the thread. `routers` outlives Stop. REQUIRES: Publish was called.
  void Start(RouterStreams& routers);
  // Ends the thread.
  void Stop();

  // ---- any thread
  // Heartbeats go to all routers at the shortest interval that any of them asked for.
  void NoteInterval(const v1::RouterMessage& message);

  // ---- the engine thread
  // While steps run, reports are published no more often than the thread looks for them.
  bool PublishDue() const;
  // What heartbeats tell from now on, with what `resources` have learned of costs.
  void Publish(Report report, const NodeResources& resources);
  // All costs are news to the router that has joined.
  void OnRouterJoined();
  // Sends the messages, each with `load`. `held`: NodeCore::held.
  void SendWithLoad(absl::flat_hash_map<RouterKey, v1::NodeMessage> messages, v1::NodeLoad load,
                    int64_t held, RouterStreams& routers);
  // Tells the routers the load at once if the node has come to hold less than they know: they would
  // not use freed room until the next heartbeat otherwise.
  void AnnounceFreedRoom(int64_t held, absl::FunctionRef<v1::NodeLoad()> load,
                         RouterStreams& routers);

 private:
  // On the heartbeat thread.
  void Run(RouterStreams& routers);
  // But for the load.
  std::optional<v1::NodeMessage> TakeDue(absl::Time now);

  FreedRoom freed_room_;   // engine thread
  absl::Time publish_at_;  // engine thread
  PublishedLoad load_;
  absl::Mutex mutex_;
  Report report_ ABSL_GUARDED_BY(mutex_);  // but for the load, which is in load_
  CostReport costs_ ABSL_GUARDED_BY(mutex_);
  HeartbeatPace pace_ ABSL_GUARDED_BY(mutex_);
  BoundedQueue<int> stop_{1};  // closing it ends the thread
  Thread thread_;
};

}  // namespace tandem::node
