// What reading a node's stored blocks takes: the rates of its tiers, learned from the copies that
// ran, and what the storage thread has to do before. The thread carries out loads in their order
// and before saves, one command at a time, so ahead of a load are the loads without an event and
// the save that runs.
//
// Times are microseconds. What no copy has told counts as 0.
// Thread safety: none; the engine thread. Owner: StoredBlocks.
// Invariants: none of the queue's figures decides what is stored; they are prices alone.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "common/cost/copy_profile.h"
#include "common/cost/copy_rate.h"
#include "common/storage/block_storage.h"
#include "common/storage/store_tier.h"

namespace tandem::node {

class StorageTimes {
 public:
  using Blocks = storage::PerTier<int64_t>;  // how many, by the tier that they are read from

  // `tiers`: that the node has. `block_bytes`: of one block.
  StorageTimes(storage::TierSet tiers, int64_t block_bytes)
      : tiers_(tiers), block_bytes_(block_bytes) {}

  // What reading these blocks takes, by itself. The price of a tier without reads for a while
  // fades (common/cost/price_age.h), so that it is tried again.
  double ReadUs(const Blocks& blocks, absl::Time now) const;
  // Until a load that was given now would begin.
  double AheadUs(absl::Time now) const;

  // A command was given to the storage.
  void OnLoad(storage::LoadId load, const Blocks& blocks, absl::Time now);
  void OnSave();
  // Its event has come.
  void Handle(const storage::BlocksLoaded& event, absl::Time now);
  void Handle(const storage::BlockSaved& event, absl::Time now);

  // REQUIRES: the node has the tier.
  cost::TierProfile profile(storage::StoreTier tier) const;

 private:
  struct Tier {
    cost::CopyRate read, write;
    absl::Time read_at = absl::InfiniteFuture();  // the last sample of `read`
  };
  // What the storage thread is taken to be busy with for a load: the reads, and the copies of what
  // came from the disk into host memory.
  double LoadUs(const Blocks& blocks) const;
  double SaveUs() const;
  // `work_us` less what the thread has done of its running command.
  double LeftOf(double work_us, double running_us, absl::Time now) const;

  const storage::TierSet tiers_;
  const int64_t block_bytes_;
  storage::PerTier<Tier> by_tier_;
  // Without an event. Bound: StoredBlocks::loads_.
  std::map<storage::LoadId, Blocks> loads_;
  int64_t saves_ = 0;         // without an event
  bool save_runs_ = false;    // the thread's command is a save
  absl::Time running_since_;  // the thread's command; infinite future: not known
};

}  // namespace tandem::node
