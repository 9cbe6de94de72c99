// A simulated node's storage for KV blocks: the production tiers over simulated ones. Its disk
// outlives the node's process; its host memory does not.
// Thread safety: none; the simulation's thread. Owner: a SimNode.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "common/runtime/random.h"
#include "common/storage/block_tiers.h"
#include "sim/sim_block_store.h"
#include "sim/world/schedule.h"

namespace tandem::sim {

class SimStorage {
 public:
  // Null: the topology has no storage. `random` outlives it.
  static std::unique_ptr<SimStorage> Create(const Topology& topology, Random& random);

  storage::StorageContents Contents() const { return tiers_->Contents(); }
  int64_t slots() const { return tiers_->slots(); }
  bool has_disk() const { return disk_ != nullptr; }
  // Carries out `command` on the process's blocks. nullopt: it has no event. `time`: that copying
  // to or from a disk took; host memory is ten times as quick.
  std::optional<storage::StorageEvent> Handle(const storage::StorageCommand& command,
                                              kv::BlockArena& arena, absl::Duration time);
  // Damages a block of one of its tiers; false if that has none.
  bool Damage();
  // The process has ended.
  void OnCrash();

 private:
  // Copies take the time that Handle is told.
  struct StandingClock final : Clock {
    absl::Time Now() const override { return absl::UnixEpoch(); }
  };
  SimStorage(std::unique_ptr<SimBlockStore> host, std::unique_ptr<SimBlockStore> disk,
             Random& random);

  const StandingClock clock_;
  Random& random_;
  SimBlockStore* const host_;  // of tiers_, as the next; null: there is no such tier
  SimBlockStore* const disk_;
  const std::unique_ptr<storage::BlockTiers> tiers_;
};

}  // namespace tandem::sim
