#include "sim/trace/timed_storage.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/base/check.h"
#include "common/storage/use_order.h"

namespace tandem::sim {

// The names that a tier holds. A copy takes its time by the storage's clock.
class TimedStorage::NameStore final : public storage::BlockStore {
 public:
  NameStore(int64_t blocks_max, absl::Duration copy_time, CopyClock& clock)
      : blocks_max_(blocks_max), copy_time_(copy_time), clock_(clock) {}

  absl::Status Save(const kv::BlockHash& hash, const kv::BlockHash& parent,
                    absl::Span<const absl::Span<const std::byte>>,
                    std::vector<kv::BlockHash>& removed) override {
    if (Contains(hash)) return absl::OkStatus();
    if (size() == blocks_max_) {
      const std::optional<kv::BlockHash> goes = order_.ToRemoveFor(parent);
      if (!goes.has_value()) return absl::OkStatus();
      removed.push_back(*goes);
      Forget(*goes);
    }
    clock_.Take(copy_time_);
    blocks_.insert(hash);
    order_.Add(hash, parent);
    return absl::OkStatus();
  }
  absl::Status Load(const kv::BlockHash& hash, absl::Span<const absl::Span<std::byte>>) override {
    if (!Contains(hash)) return absl::NotFoundError("the block is not stored");
    clock_.Take(copy_time_);
    Touch(hash);
    return absl::OkStatus();
  }
  void Touch(const kv::BlockHash& hash) override { order_.Use(hash); }
  void Forget(const kv::BlockHash& hash) override {
    if (blocks_.erase(hash) > 0) order_.Remove(hash);
  }
  bool Contains(const kv::BlockHash& hash) const override { return blocks_.contains(hash); }
  kv::BlockHash ParentOf(const kv::BlockHash& hash) const override { return order_.ParentOf(hash); }
  std::vector<kv::BlockHash> Hashes() const override { return order_.Hashes(); }
  int64_t slots() const override { return blocks_max_; }
  int64_t size() const override { return static_cast<int64_t>(blocks_.size()); }

 private:
  const int64_t blocks_max_;
  const absl::Duration copy_time_;  // of one block
  CopyClock& clock_;
  // Bound: blocks_max_, for both.
  absl::flat_hash_set<kv::BlockHash> blocks_;
  storage::UseOrder order_;
};

namespace {

std::unique_ptr<kv::BlockArena> StandIn(int64_t num_blocks) {
  auto arena = kv::BlockArena::Create({.num_layers = 1, .block_tokens = 1, .layer_block_bytes = 8},
                                      num_blocks);
  TANDEM_CHECK(arena.ok(), arena.status().ToString());
  return *std::move(arena);
}

}  // namespace

std::unique_ptr<TimedStorage> TimedStorage::Create(const TimedStorageOptions& options,
                                                   int64_t num_blocks, StorageSite site) {
  if (options.host.blocks == 0 && options.disk.blocks == 0) return nullptr;
  return std::unique_ptr<TimedStorage>(new TimedStorage(options, num_blocks, std::move(site)));
}

TimedStorage::TimedStorage(const TimedStorageOptions& options, int64_t num_blocks, StorageSite site)
    : options_(options),
      site_(std::move(site)),
      arena_(StandIn(num_blocks)),
      tiers_(
          std::make_unique<storage::BlockTiers>(Tier(options.host), Tier(options.disk), clock_)) {}

std::unique_ptr<storage::BlockStore> TimedStorage::Tier(const TimedTier& tier) {
  if (tier.blocks == 0) return nullptr;
  const double copy_s = static_cast<double>(options_.block_bytes) / tier.bytes_per_second;
  return std::make_unique<NameStore>(tier.blocks, tier.latency + absl::Seconds(copy_s), clock_);
}

void TimedStorage::Submit(storage::StorageCommand command) {
  if (const auto* cancel = std::get_if<storage::CancelLoad>(&command)) return Cancel(cancel->load);
  (std::holds_alternative<storage::LoadBlocks>(command) ? loads_ : others_)
      .push_back(std::move(command));
  Run();
}

void TimedStorage::Cancel(storage::LoadId load) {
  const auto it = std::find_if(loads_.begin(), loads_.end(), [load](const auto& command) {
    return std::get<storage::LoadBlocks>(command).load == load;
  });
  if (it == loads_.end()) return;
  loads_.erase(it);
  site_.process.Post(absl::ZeroDuration(),
                     [this, load] { site_.on_event(storage::Cancelled(load)); });
}

void TimedStorage::Run() {
  std::deque<storage::StorageCommand>& queue = loads_.empty() ? others_ : loads_;
  if (running_ || queue.empty()) return;
  const storage::StorageCommand command = std::move(queue.front());
  queue.pop_front();
  const absl::Time began = clock_.Now();
  std::optional<storage::StorageEvent> event = Handle(command);
  running_ = true;
  site_.process.Post(clock_.Now() - began, [this, event = std::move(event)]() mutable {
    running_ = false;
    if (event.has_value()) site_.on_event(*std::move(event));
    Run();
  });
}

std::optional<storage::StorageEvent> TimedStorage::Handle(const storage::StorageCommand& command) {
  if (const auto* save = std::get_if<storage::SaveBlock>(&command)) {
    storage::BlockSaved saved = tiers_->Save(*save, *arena_);
    Scale(saved.written);
    return saved;
  }
  if (const auto* load = std::get_if<storage::LoadBlocks>(&command)) {
    std::vector<BlockId> arrived;  // no engine reads them
    storage::BlocksLoaded loaded = tiers_->Load(*load, *arena_, arrived);
    Scale(loaded.read);
    return loaded;
  }
  tiers_->Forget(std::get<storage::ForgetBlock>(command));
  return std::nullopt;
}

void TimedStorage::Scale(storage::PerTier<storage::Copied>& copied) const {
  for (const storage::StoreTier tier : storage::kStoreTiers)
    copied[tier].bytes = copied[tier].bytes / arena_->layout().block_bytes() * options_.block_bytes;
}

void TimedStorage::OnCrash() {
  loads_.clear();
  others_.clear();
  running_ = false;
}

}  // namespace tandem::sim
