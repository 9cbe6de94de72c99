#include "common/storage/storage_service.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"

namespace tandem::storage {
StorageService::StorageService(std::unique_ptr<BlockTiers> tiers, kv::BlockArena& arena,
                               Arrived arrived, absl::AnyInvocable<void(StorageEvent)> sink)
    : tiers_(std::move(tiers)),
      arena_(arena),
      arrived_(std::move(arrived)),
      sink_(std::move(sink)) {
  thread_ = Thread("storage", [this] { Run(); });
}

StorageService::~StorageService() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  arrived_command_.SignalAll();
  thread_.Join();
}

std::optional<StorageEvent> StorageService::Submit(StorageCommand command) {
  if (const auto* cancel = std::get_if<CancelLoad>(&command)) return Cancel(cancel->load);
  {
    absl::MutexLock lock(&mutex_);
    if (std::holds_alternative<ForgetBlock>(command))
      ++forgets_;
    else
      TANDEM_CHECK(std::ssize(loads_) + std::ssize(others_) - forgets_ < kCommandsMax, "more than ",
                   kCommandsMax, " saves and loads at a time");
    ++backlog_;
    if (auto* load = std::get_if<LoadBlocks>(&command))
      loads_.push_back(std::move(*load));
    else
      others_.push_back(std::move(command));
  }
  arrived_command_.Signal();
  return std::nullopt;
}

std::optional<StorageEvent> StorageService::Cancel(LoadId load) {
  absl::MutexLock lock(&mutex_);
  const auto it = std::find_if(loads_.begin(), loads_.end(),
                               [load](const LoadBlocks& each) { return each.load == load; });
  if (it == loads_.end()) return std::nullopt;
  loads_.erase(it);
  --backlog_;
  return Cancelled(load);
}

std::optional<StorageCommand> StorageService::Next() {
  absl::MutexLock lock(&mutex_);
  while (!HasWork()) arrived_command_.Wait(&mutex_);
  if (closed_) return std::nullopt;
  std::optional<StorageCommand> next;
  if (!loads_.empty()) {
    next = std::move(loads_.front());
    loads_.pop_front();
  } else {
    next = std::move(others_.front());
    others_.pop_front();
    if (std::holds_alternative<ForgetBlock>(*next)) --forgets_;
  }
  return next;
}

void StorageService::Run() {
  while (const std::optional<StorageCommand> command = Next()) {
    std::visit([this](const auto& each) { Handle(each); }, *command);
    --backlog_;
  }
}

void StorageService::Handle(const SaveBlock& command) { sink_(tiers_->Save(command, arena_)); }

void StorageService::Handle(const LoadBlocks& command) {
  std::vector<BlockId> blocks;
  BlocksLoaded event = tiers_->Load(command, arena_, blocks);
  if (!event.fault.ok())
    Log(LogLevel::kWarning, "dropped a stored KV block", {{"why", event.fault.ToString()}});
  const absl::Time start = RealClock().Now();
  arrived_(blocks);
  // Each tier's blocks took their part of it.
  const absl::Duration bringing = RealClock().Now() - start;
  for (const StoreTier tier : kStoreTiers) {
    if (event.read[tier].bytes == 0) continue;
    const auto all = static_cast<double>(event.read.host.bytes + event.read.disk.bytes);
    event.read[tier].time += bringing * (static_cast<double>(event.read[tier].bytes) / all);
  }
  sink_(std::move(event));
}

}  // namespace tandem::storage
