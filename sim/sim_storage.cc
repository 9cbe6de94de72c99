#include "sim/sim_storage.h"

#include <algorithm>
#include <utility>
#include <variant>
#include <vector>

namespace tandem::sim {

SimStorage::SimStorage(World& world, const Topology& topology, StorageSite site,
                       std::unique_ptr<SimBlockStore> host, std::unique_ptr<SimBlockStore> disk)
    : world_(world),
      topology_(topology),
      site_(std::move(site)),
      host_(host.get()),
      disk_(disk.get()),
      tiers_(std::make_unique<storage::BlockTiers>(std::move(host), std::move(disk), clock_)) {}

std::unique_ptr<SimStorage> SimStorage::Create(World& world, const Topology& topology,
                                               StorageSite site) {
  if (topology.host_blocks == 0 && topology.disk_blocks == 0) return nullptr;
  const auto tier = [&](int64_t blocks) -> std::unique_ptr<SimBlockStore> {
    if (blocks == 0) return nullptr;
    return std::make_unique<SimBlockStore>(blocks, topology.disk_fails, world.random());
  };
  return std::unique_ptr<SimStorage>(new SimStorage(
      world, topology, std::move(site), tier(topology.host_blocks), tier(topology.disk_blocks)));
}

void SimStorage::Submit(storage::StorageCommand command) {
  if (const auto* cancel = std::get_if<storage::CancelLoad>(&command)) return Cancel(cancel->load);
  const absl::Duration time = world_.RandomDelay(absl::Microseconds(topology_.disk_us));
  pending_.push_back({std::move(command), time});
  if (pending_.size() == 1) BeginFirst();
}

void SimStorage::BeginFirst() {
  site_.process.Post(pending_.front().time, [this] { EndFirst(); });
}

void SimStorage::EndFirst() {
  if (world_.now() < hangs_until_)
    return site_.process.Post(hangs_until_ - world_.now(), [this] { EndFirst(); });
  const Pending first = std::move(pending_.front());
  pending_.pop_front();
  auto event = Handle(first.command, first.time);
  if (event.has_value()) site_.on_event(*std::move(event));
  if (!pending_.empty()) BeginFirst();
}

void SimStorage::Cancel(storage::LoadId load) {
  const auto is_it = [load](const Pending& pending) {
    const auto* other = std::get_if<storage::LoadBlocks>(&pending.command);
    return other != nullptr && other->load == load;
  };
  const auto it = std::find_if(pending_.begin(), pending_.end(), is_it);
  if (it == pending_.end() || it == pending_.begin()) return;
  pending_.erase(it);
  site_.process.Post(absl::ZeroDuration(),
                     [this, load] { site_.on_event(storage::Cancelled(load)); });
}

void SimStorage::Hang(absl::Duration time) {
  hangs_until_ = std::max(hangs_until_, world_.now() + time);
}

std::optional<storage::StorageEvent> SimStorage::Handle(const storage::StorageCommand& command,
                                                        absl::Duration time) {
  kv::BlockArena& arena = site_.arena();
  const auto take_time = [time](storage::PerTier<storage::Copied>& copied) {
    if (copied.host.bytes > 0) copied.host.time = time / 10;
    if (copied.disk.bytes > 0) copied.disk.time = time;
  };
  if (const auto* save = std::get_if<storage::SaveBlock>(&command)) {
    storage::BlockSaved saved = tiers_->Save(*save, arena);
    take_time(saved.written);
    return saved;
  }
  if (const auto* load = std::get_if<storage::LoadBlocks>(&command)) {
    std::vector<BlockId> arrived;
    storage::BlocksLoaded loaded = tiers_->Load(*load, arena, arrived);
    // Simulated engines read the arena itself.
    for (const BlockId block : arrived) arena.TakeArrived(block);
    take_time(loaded.read);
    return loaded;
  }
  tiers_->Forget(std::get<storage::ForgetBlock>(command));
  return std::nullopt;
}

bool SimStorage::Damage() {
  const bool in_host = host_ != nullptr && (disk_ == nullptr || world_.random().Below(2) == 0);
  return (in_host ? host_ : disk_)->Damage();
}

void SimStorage::OnCrash() {
  pending_.clear();
  if (host_ != nullptr) host_->Clear();
}

}  // namespace tandem::sim
