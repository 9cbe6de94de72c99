#include "common/storage/storage_service.h"

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
  inbox_.Close();
  thread_.Join();
}

void StorageService::Submit(StorageCommand command) {
  ++backlog_;
  TANDEM_CHECK(inbox_.TryPush(std::move(command)) || inbox_.closed(), "more than ", kCommandsMax,
               " storage commands at a time");
}

void StorageService::Run() {
  while (true) {
    const bool idle = loads_.empty() && others_.empty();
    for (StorageCommand& command :
         inbox_.PopAll(idle ? absl::InfiniteDuration() : absl::ZeroDuration())) {
      if (auto* load = std::get_if<LoadBlocks>(&command))
        loads_.push_back(std::move(*load));
      else
        others_.push_back(std::move(command));
    }
    if (inbox_.closed()) return;
    if (!loads_.empty()) {
      Handle(loads_.front());
      loads_.pop_front();
      --backlog_;
    } else if (!others_.empty()) {
      std::visit([this](const auto& each) { Handle(each); }, others_.front());
      others_.pop_front();
      --backlog_;
    }
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
