// A simulated node's storage for KV blocks without their bytes: the production tiers over sets of
// names. Each command takes the time that its blocks take at the tier's rate. One storage thread
// carries them out; loads go before saves, as in a process (common/storage/storage_service.h).
// Thread safety: none; the simulation's thread. Owner: a SimNode.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/time/time.h"
#include "common/kv/block_arena.h"
#include "common/storage/block_tiers.h"
#include "sim/node_storage.h"

namespace tandem::sim {

// One tier: how many blocks it holds, and what copying to or from it takes.
struct TimedTier {
  int64_t blocks = 0;  // 0 = there is no such tier
  double bytes_per_second = 0;
  absl::Duration latency;  // of one block
};

struct TimedStorageOptions {
  TimedTier host, disk;
  int64_t block_bytes = 0;
};

class TimedStorage final : public NodeStorage {
 public:
  // Null: there is no tier. REQUIRES: positive rates of the tiers that there are.
  // `num_blocks`: of the node's memory.
  static std::unique_ptr<TimedStorage> Create(const TimedStorageOptions& options,
                                              int64_t num_blocks, StorageSite site);

  storage::StorageContents Contents() const override { return tiers_->Contents(); }
  int64_t slots() const override { return tiers_->slots(); }
  bool has_disk() const override { return options_.disk.blocks > 0; }
  void Submit(storage::StorageCommand command) override;
  bool Damage() override { return false; }
  void Hang(absl::Duration) override {}  // traces have no faults
  void OnStart() override {}
  void OnCrash() override;

 private:
  // What the copies of the running command take.
  class CopyClock final : public Clock {
   public:
    absl::Time Now() const override { return now_; }
    void Take(absl::Duration time) { now_ += time; }

   private:
    absl::Time now_ = absl::UnixEpoch();
  };
  class NameStore;

  TimedStorage(const TimedStorageOptions& options, int64_t num_blocks, StorageSite site);
  std::unique_ptr<storage::BlockStore> Tier(const TimedTier& tier);
  // If the load has not begun.
  void Cancel(storage::LoadId load);
  // Begins the next command, if none runs.
  void Run();
  std::optional<storage::StorageEvent> Handle(const storage::StorageCommand& command);
  // The production tiers copy the stand-in's bytes.
  void Scale(storage::PerTier<storage::Copied>& copied) const;

  const TimedStorageOptions options_;
  const StorageSite site_;
  CopyClock clock_;
  // Stands in for the memory of the node's blocks: a few bytes each, which no engine reads.
  const std::unique_ptr<kv::BlockArena> arena_;
  const std::unique_ptr<storage::BlockTiers> tiers_;
  // Bound: the saves and loads that a node has at a time (StoredBlocks), and what it forgets.
  std::deque<storage::StorageCommand> loads_, others_;
  bool running_ = false;
};

}  // namespace tandem::sim
