// A node's storage thread in virtual time, with room for everything: it copies blocks one by one at
// a fixed rate, loads before saves. Thread safety: none. Owner: a benchmark's run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <iterator>
#include <optional>
#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/node/node_core.h"
#include "common/storage/block_storage.h"

namespace tandem::node {

class VirtualStorage {
 public:
  explicit VirtualStorage(double read_block_us) : read_(absl::Microseconds(read_block_us)) {}

  void Take(NodeActions actions, absl::Time now) {
    for (storage::StorageCommand& command : actions.storage) {
      if (const auto* cancel = std::get_if<storage::CancelLoad>(&command)) {
        Cancel(cancel->load);
      } else if (std::holds_alternative<storage::LoadBlocks>(command)) {
        loads_.push_back(std::move(command));
      } else if (std::holds_alternative<storage::SaveBlock>(command)) {
        saves_.push_back(std::move(command));
      }
    }
    Begin(now);
  }
  absl::Time next() const { return running_.has_value() ? ends_ : absl::InfiniteFuture(); }
  // The event of what has ended by `now`.
  std::optional<storage::StorageEvent> Pop(absl::Time now) {
    if (!cancelled_.empty()) {
      storage::StorageEvent event = cancelled_.front();
      cancelled_.pop_front();
      return event;
    }
    if (!running_.has_value() || ends_ > now) return std::nullopt;
    const storage::StorageCommand command = *std::exchange(running_, std::nullopt);
    const absl::Time ended = ends_;
    const auto tiers = storage::TierSet::Of(storage::StoreTier::kHost);
    storage::StorageEvent event;
    if (const auto* load = std::get_if<storage::LoadBlocks>(&command)) {
      storage::BlocksLoaded loaded{.load = load->load};
      loaded.loaded = std::ssize(load->blocks);
      loaded.from.assign(load->blocks.size(), storage::StoreTier::kHost);
      loaded.read.host = {loaded.loaded * kBlockBytes, static_cast<double>(loaded.loaded) * read_};
      event = loaded;
    } else {
      storage::BlockSaved saved{.block = std::get<storage::SaveBlock>(command).block,
                                .tiers = tiers};
      saved.written.host = {kBlockBytes, read_};
      event = saved;
    }
    Begin(ended);
    return event;
  }

  static constexpr int64_t kBlockBytes = 16 * 1024;

 private:
  void Begin(absl::Time now) {
    if (running_.has_value() || (loads_.empty() && saves_.empty())) return;
    std::deque<storage::StorageCommand>& queue = loads_.empty() ? saves_ : loads_;
    running_ = std::move(queue.front());
    queue.pop_front();
    const auto* load = std::get_if<storage::LoadBlocks>(&*running_);
    ends_ = now + read_ * (load == nullptr ? 1 : std::ssize(load->blocks));
  }
  void Cancel(storage::LoadId id) {
    const auto it = std::find_if(loads_.begin(), loads_.end(), [&](const auto& command) {
      return std::get<storage::LoadBlocks>(command).load == id;
    });
    if (it == loads_.end()) return;
    loads_.erase(it);
    cancelled_.push_back(storage::BlocksLoaded{.load = id, .status = absl::CancelledError("")});
  }

  const absl::Duration read_;
  std::deque<storage::StorageCommand> loads_, saves_;
  std::deque<storage::StorageEvent> cancelled_;
  std::optional<storage::StorageCommand> running_;
  absl::Time ends_;
};

}  // namespace tandem::node
