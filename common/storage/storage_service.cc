#include "common/storage/storage_service.h"

#include <utility>
#include <variant>
#include <vector>

#include "common/base/check.h"
#include "common/runtime/clock.h"
#include "common/telemetry/log.h"

namespace tandem::storage {
namespace {

std::vector<absl::Span<std::byte>> PiecesOf(const kv::BlockArena& arena, BlockId block) {
  std::vector<absl::Span<std::byte>> pieces;
  for (int layer = 0; layer < arena.layout().num_layers; ++layer)
    pieces.push_back(arena.Block(layer, block));
  return pieces;
}

}  // namespace

StorageService::StorageService(std::unique_ptr<BlockFile> file, kv::BlockArena& arena,
                               Arrived arrived, absl::AnyInvocable<void(StorageEvent)> sink)
    : file_(std::move(file)), arena_(arena), arrived_(std::move(arrived)), sink_(std::move(sink)) {
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

void StorageService::Handle(const SaveBlock& command) {
  BlockSaved event{.block = command.block};
  const auto pieces = PiecesOf(arena_, command.block.second);
  const std::vector<absl::Span<const std::byte>> from(pieces.begin(), pieces.end());
  const absl::Time start = RealClock().Now();
  event.status = file_->Save(command.block.first, from, event.removed);
  if (event.status.ok()) event.bytes = arena_.layout().block_bytes();
  event.time = RealClock().Now() - start;
  sink_(std::move(event));
}

void StorageService::Handle(const LoadBlocks& command) {
  BlocksLoaded event{.load = command.load};
  const absl::Time start = RealClock().Now();
  std::vector<BlockId> blocks;
  for (const auto& [hash, block] : command.blocks) {
    const absl::Status loaded = file_->Load(hash, PiecesOf(arena_, block));
    if (!loaded.ok()) {
      Log(LogLevel::kWarning, "dropped a stored KV block", {{"why", loaded.ToString()}});
      event.removed.push_back(hash);
      break;
    }
    // An engine whose KV lies on a device copies the block there before it reads it.
    arena_.MarkArrived(block);
    blocks.push_back(block);
    ++event.loaded;
    event.bytes += arena_.layout().block_bytes();
  }
  arrived_(blocks);
  event.time = RealClock().Now() - start;
  sink_(std::move(event));
}

}  // namespace tandem::storage
