// A simulated node's storage for KV blocks with their bytes: the production tiers over simulated
// ones, which are slow and fail at random. Its disk outlives the node's process; its host memory
// does not. Thread safety: none; the simulation's thread. Owner: a SimNode.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "common/storage/block_tiers.h"
#include "sim/node_storage.h"
#include "sim/sim_block_store.h"
#include "sim/world/schedule.h"

namespace tandem::sim {

class SimStorage final : public NodeStorage {
 public:
  // Null: the topology has no storage. `world` and `topology` outlive it.
  static std::unique_ptr<SimStorage> Create(World& world, const Topology& topology,
                                            StorageSite site);

  storage::StorageContents Contents() const override { return tiers_->Contents(); }
  int64_t slots() const override { return tiers_->slots(); }
  bool has_disk() const override { return disk_ != nullptr; }
  void Submit(storage::StorageCommand command) override;
  bool Damage() override;
  void OnStart() override { free_at_ = world_.now(); }
  void OnCrash() override;

 private:
  // Copies take the time that Handle is told.
  struct StandingClock final : Clock {
    absl::Time Now() const override { return absl::UnixEpoch(); }
  };
  SimStorage(World& world, const Topology& topology, StorageSite site,
             std::unique_ptr<SimBlockStore> host, std::unique_ptr<SimBlockStore> disk);
  // If the load has not begun. Commands behind it begin no sooner.
  void Cancel(storage::LoadId load);
  // Carries out `command` on the process's blocks. nullopt: it has no event. `time`: that copying
  // to or from a disk took; host memory is ten times as quick.
  std::optional<storage::StorageEvent> Handle(const storage::StorageCommand& command,
                                              absl::Duration time);

  World& world_;
  const Topology& topology_;
  const StorageSite site_;
  const StandingClock clock_;
  SimBlockStore* const host_;  // of tiers_, as the next; null: there is no such tier
  SimBlockStore* const disk_;
  const std::unique_ptr<storage::BlockTiers> tiers_;
  absl::Time free_at_;  // of the commands so far
  // When each load of this life begins that has neither ended nor been cancelled. Bound: the loads
  // that a node has at a time (StoredBlocks).
  std::map<storage::LoadId, absl::Time> begins_;
};

}  // namespace tandem::sim
