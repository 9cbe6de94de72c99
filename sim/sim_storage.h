// A simulated node's storage for KV blocks with their bytes: the production tiers over simulated
// ones, which are slow and fail at random. Its disk outlives the node's process; its host memory
// does not. Thread safety: none; the simulation's thread. Owner: a SimNode.
#pragma once

#include <deque>
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
  void Hang(absl::Duration time) override;
  void OnStart() override {}
  void OnCrash() override;

 private:
  // Copies take the time that Handle is told.
  struct StandingClock final : Clock {
    absl::Time Now() const override { return absl::UnixEpoch(); }
  };
  SimStorage(World& world, const Topology& topology, StorageSite site,
             std::unique_ptr<SimBlockStore> host, std::unique_ptr<SimBlockStore> disk);
  struct Pending {
    storage::StorageCommand command;
    absl::Duration time;
  };
  // If the load has not begun.
  void Cancel(storage::LoadId load);
  void BeginFirst();
  void EndFirst();
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
  // In order; the first one runs. Bound: the commands that a node has at a time (StoredBlocks).
  std::deque<Pending> pending_;
  absl::Time hangs_until_ = absl::InfinitePast();  // a process that starts meanwhile waits as well
};

}  // namespace tandem::sim
