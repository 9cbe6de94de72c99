// Threads for long pieces of work of single requests, such as reading and tokenizing megabytes of
// text: the threads that read requests serve many clients and must not stand still for one. Pieces
// begin in the order in which they came.
//
// Thread safety: any thread. The work runs on the queue's threads.
// Owner: the router's server, which outlives what the work touches. The destructor ends the threads
// after the pieces that they run; what waits is destroyed and not run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "common/runtime/thread.h"

namespace tandem::router {

class LongWork {
 public:
  using Work = absl::AnyInvocable<void()>;
  // A request of so many bytes or less is processed where it was read: some milliseconds.
  static constexpr size_t kShortBytesMax = 64 << 10;
  // What may wait: pieces, and the bytes that their requests hold.
  static constexpr size_t kPiecesMax = 4096;
  static constexpr size_t kBytesMax = 256 << 20;
  static constexpr int kThreads = 2;

  explicit LongWork(int threads = kThreads);
  ~LongWork();

  // Runs `work` on one of the queue's threads, later; `bytes` is what its request holds. An empty
  // queue takes a piece of any size. Errors: kUnavailable when too much waits; `work` is then
  // destroyed.
  absl::Status Add(size_t bytes, Work work);
  // Pieces that wait.
  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return waiting_.size();
  }

 private:
  void Run();
  bool Wakes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return closed_ || !waiting_.empty(); }

  mutable absl::Mutex mutex_;
  // Bound: kPiecesMax (4,096).
  std::deque<std::pair<size_t, Work>> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of what waits, and of what runs
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<Thread> threads_;  // Bound: as many as the constructor says (kThreads, 2)
};

}  // namespace tandem::router
