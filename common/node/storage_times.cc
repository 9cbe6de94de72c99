#include "common/node/storage_times.h"

#include <algorithm>

#include "common/cost/price_age.h"

namespace tandem::node {

using storage::StoreTier;

double StorageTimes::ReadUs(const Blocks& blocks, absl::Time now) const {
  double us = 0;
  for (const StoreTier tier : storage::kStoreTiers) {
    const Tier& from = by_tier_[tier];
    if (blocks[tier] > 0 && from.read.samples() > 0)
      us += cost::FadedPrice(from.read.PredictUs(blocks[tier] * block_bytes_), /*prior=*/0,
                             from.read_at, now);
  }
  return us;
}

double StorageTimes::LoadUs(const Blocks& blocks) const {
  double us = 0;
  for (const StoreTier tier : storage::kStoreTiers)
    us += by_tier_[tier].read.PredictUs(blocks[tier] * block_bytes_);
  if (tiers_ == storage::TierSet::All())
    us += by_tier_.host.write.PredictUs(blocks.disk * block_bytes_);
  return us;
}

double StorageTimes::SaveUs() const {
  double us = 0;
  for (const StoreTier tier : storage::kStoreTiers)
    us += by_tier_[tier].write.PredictUs(block_bytes_);
  return us;
}

double StorageTimes::LeftOf(double work_us, double running_us, absl::Time now) const {
  const double ran_us = absl::ToDoubleMicroseconds(now - running_since_);
  return work_us - std::clamp(ran_us, 0.0, running_us);
}

double StorageTimes::AheadUs(absl::Time now) const {
  if (loads_.empty() && !save_runs_) return 0;
  double work_us = save_runs_ ? SaveUs() : 0;
  const double running_us = save_runs_ ? work_us : LoadUs(loads_.begin()->second);
  for (const auto& [load, blocks] : loads_) work_us += LoadUs(blocks);
  return LeftOf(work_us, running_us, now);
}

void StorageTimes::OnLoad(storage::LoadId load, const Blocks& blocks, absl::Time now) {
  if (loads_.empty() && !save_runs_) running_since_ = now;
  loads_.emplace(load, blocks);
}

void StorageTimes::OnSave() {
  if (loads_.empty() && !save_runs_) {
    save_runs_ = true;
    running_since_ = absl::InfiniteFuture();
  }
  ++saves_;
}

void StorageTimes::Handle(const storage::BlocksLoaded& event, absl::Time now) {
  loads_.erase(event.load);
  if (absl::IsCancelled(event.status)) {
    save_runs_ |= loads_.empty() && saves_ > 0;
    return;
  }
  running_since_ = now;
  save_runs_ = loads_.empty() && saves_ > 0;
  for (const StoreTier tier : storage::kStoreTiers) {
    const storage::Copied& read = event.read[tier];
    if (read.bytes == 0) continue;
    by_tier_[tier].read.Observe(read.bytes, absl::ToDoubleMicroseconds(read.time));
    by_tier_[tier].read_at = now;
  }
}

void StorageTimes::Handle(const storage::BlockSaved& event, absl::Time now) {
  --saves_;
  running_since_ = now;
  save_runs_ = loads_.empty() && saves_ > 0;
  for (const StoreTier tier : storage::kStoreTiers) {
    const storage::Copied& written = event.written[tier];
    if (written.bytes > 0)
      by_tier_[tier].write.Observe(written.bytes, absl::ToDoubleMicroseconds(written.time));
  }
}

cost::TierProfile StorageTimes::profile(StoreTier tier) const {
  return {.read = by_tier_[tier].read.profile(), .write = by_tier_[tier].write.profile()};
}

}  // namespace tandem::node
