// The thread that carries out a core's storage commands on its BlockTiers.
//
// Loads go before saves: a prompt waits for a load, and no request waits for a save. A load that
// the thread has not begun can be cancelled, also while the thread hangs in another command.
// Thread safety: any thread calls Submit; `sink` is called on the storage thread. The owner alone
// destroys it.
// Owner: NodeRuntime.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "common/base/steady_cond_var.h"
#include "common/kv/block_arena.h"
#include "common/runtime/thread.h"
#include "common/storage/block_storage.h"
#include "common/storage/block_tiers.h"

namespace tandem::storage {

class StorageService {
 public:
  // More saves and loads than a core has under way at a time.
  static constexpr int64_t kCommandsMax = 4096;

  // What is done with blocks that were read into the arena, before their event, on the storage
  // thread: an engine whose KV lies on a device copies them there.
  using Arrived = absl::AnyInvocable<void(absl::Span<const BlockId>)>;

  // `arena` outlives it. Starts the thread.
  StorageService(std::unique_ptr<BlockTiers> tiers, kv::BlockArena& arena, Arrived arrived,
                 absl::AnyInvocable<void(StorageEvent)> sink);
  // Ends the command that runs; those that wait have no event.
  ~StorageService();

  // Never waits for the thread. The event of a load that the command cancels is returned, instead
  // of going to `sink`: it does not wait for the command that runs. After it the thread does not
  // touch the load's blocks. REQUIRES: fewer than kCommandsMax saves and loads without an event.
  // Forgets do not count: a step that fails forgets all blocks of its sequences at once. Each is of
  // a block that the storage has, so its slots bound them.
  std::optional<StorageEvent> Submit(StorageCommand command);
  // Commands that wait for the storage thread, or that it carries out.
  int64_t backlog() const { return backlog_; }

 private:
  void Run();
  // Takes the next command, which from then on cannot be cancelled; waits for one. nullopt: the
  // service ends.
  std::optional<StorageCommand> Next();
  std::optional<StorageEvent> Cancel(LoadId load);
  bool HasWork() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return closed_ || !loads_.empty() || !others_.empty();
  }
  void Handle(const SaveBlock& command);
  void Handle(const LoadBlocks& command);
  void Handle(const ForgetBlock& command) { tiers_->Forget(command); }
  void Handle(const CancelLoad&) {}  // never waits

  const std::unique_ptr<BlockTiers> tiers_;  // storage thread
  kv::BlockArena& arena_;
  Arrived arrived_;                              // storage thread
  absl::AnyInvocable<void(StorageEvent)> sink_;  // storage thread
  std::atomic<int64_t> backlog_{0};
  mutable absl::Mutex mutex_;
  SteadyCondVar arrived_command_;
  // Bound: kCommandsMax, for both but the forgets. What the thread has not begun.
  std::deque<LoadBlocks> loads_ ABSL_GUARDED_BY(mutex_);
  // Bound: as loads_, and a forget for each of the storage's slots.
  std::deque<StorageCommand> others_ ABSL_GUARDED_BY(mutex_);
  int64_t forgets_ ABSL_GUARDED_BY(mutex_) = 0;  // of others_
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Thread thread_;
};

}  // namespace tandem::storage
