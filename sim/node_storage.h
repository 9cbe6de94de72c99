// The storage for KV blocks of a simulated node, as the node sees it: it takes the core's commands
// one after another, each takes its time, and the events come back.
//
//   SimStorage (sim_storage.h)            bytes, at random times, with faults: the swarm
//   TimedStorage (trace/timed_storage.h)  names alone, at given rates: traces
//
// Thread safety: none; the simulation's thread. Owner: a SimNode.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/time/time.h"
#include "common/kv/block_arena.h"
#include "common/storage/block_storage.h"
#include "sim/world/process.h"

namespace tandem::sim {

// Whom a node's storage works for.
struct StorageSite {
  Process& process;
  // Of the life that the process leads; called while it is alive.
  std::function<kv::BlockArena&()> arena;
  std::function<void(storage::StorageEvent)> on_event;
};

class NodeStorage {
 public:
  virtual ~NodeStorage() = default;

  virtual storage::StorageContents Contents() const = 0;
  virtual int64_t slots() const = 0;
  // Whether what it holds outlives the process.
  virtual bool has_disk() const = 0;
  // Carries out `command` in its turn; then on_event gets its event, if it has one. Nothing comes
  // of a command whose process has ended.
  virtual void Submit(storage::StorageCommand command) = 0;
  // Damages a block; false if it has none to damage.
  virtual bool Damage() = 0;
  // Carries out nothing for so long, from now on.
  virtual void Hang(absl::Duration time) = 0;
  // A life of the process begins, or has ended.
  virtual void OnStart() = 0;
  virtual void OnCrash() = 0;
};

}  // namespace tandem::sim
