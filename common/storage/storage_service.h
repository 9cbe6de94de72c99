// The thread that carries out a core's storage commands on its BlockTiers.
//
// Loads go before saves: a prompt waits for a load, and no request waits for a save.
// Thread safety: any thread calls Submit; `sink` is called on the storage thread. The owner alone
// destroys it.
// Owner: NodeRuntime.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/types/span.h"
#include "common/base/bounded_queue.h"
#include "common/kv/block_arena.h"
#include "common/runtime/thread.h"
#include "common/storage/block_storage.h"
#include "common/storage/block_tiers.h"

namespace tandem::storage {

class StorageService {
 public:
  // More commands than a core has under way at a time.
  static constexpr int64_t kCommandsMax = 4096;

  // What is done with blocks that were read into the arena, before their event, on the storage
  // thread: an engine whose KV lies on a device copies them there.
  using Arrived = absl::AnyInvocable<void(absl::Span<const BlockId>)>;

  // `arena` outlives it. Starts the thread.
  StorageService(std::unique_ptr<BlockTiers> tiers, kv::BlockArena& arena, Arrived arrived,
                 absl::AnyInvocable<void(StorageEvent)> sink);
  // Ends the command that runs; those that wait have no event.
  ~StorageService();

  // REQUIRES: fewer than kCommandsMax commands without an event.
  void Submit(StorageCommand command);
  // Commands that wait for the storage thread, or that it carries out.
  int64_t backlog() const { return backlog_; }

 private:
  void Run();
  void Handle(const SaveBlock& command);
  void Handle(const LoadBlocks& command);
  void Handle(const ForgetBlock& command) { tiers_->Forget(command); }

  const std::unique_ptr<BlockTiers> tiers_;  // storage thread
  kv::BlockArena& arena_;
  Arrived arrived_;                              // storage thread
  absl::AnyInvocable<void(StorageEvent)> sink_;  // storage thread
  BoundedQueue<StorageCommand> inbox_{kCommandsMax};
  std::atomic<int64_t> backlog_{0};
  // Bound: kCommandsMax.
  std::deque<LoadBlocks> loads_;       // storage thread
  std::deque<StorageCommand> others_;  // storage thread
  Thread thread_;
};

}  // namespace tandem::storage
