// A strand: a bounded queue whose items one thread at a time processes, in order. The thread that
// pushes an item processes it itself when no other thread is processing; otherwise it leaves the
// item to the thread that is. On an idle machine the thread that receives an event therefore also
// processes it, without waking another thread. Under load one thread processes while the others
// queue. (The literature calls this flat combining: the processing thread is the *combiner*.)
//
// Items have two priority classes. A low-priority item waits while any high-priority item waits,
// and one call of `process` gets at most kLowItemsMax low-priority items. This favours work that
// has begun over new work.
//
//   idle ──push──▶ the pushing thread combines ──queue empty──▶ idle
//                    └─ kPushedItemsMax processed, more wait ─▶ the fallback combines ──▶ idle
//
// A pushing thread has other work, so it processes at most kPushedItemsMax items. The *fallback
// thread* is a thread of the strand's user. It takes over from pushing threads, and it calls
// `process` once an interval even when no item waits, so that `process` can handle deadlines.
//
// Thread safety: any thread may call any method; one thread calls RunFallback. One thread at a time
// calls `process`, with no lock held, and each call sees what earlier calls wrote.
// Invariants: items of one class are processed in the order of their pushes. While an item waits,
// a thread combines or the fallback thread has been signalled. After Close() the strand accepts no
// item, and RunFallback returns when all are processed. Items that `process` pushes are processed
// after its call returns.
//
// Owner: the object whose state `process` changes; it joins the fallback thread before its
// destruction.
#pragma once

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"

namespace tandem {

template <typename Item>
class Strand {
 public:
  // Processes `items`, the oldest first. `items` is empty when the fallback thread calls because
  // its interval is over. Must not block.
  using Process = absl::AnyInvocable<void(std::vector<Item>& items)>;

  // Items that a pushing thread processes before the fallback thread takes over: enough for events
  // that arrive together, too few to keep an I/O thread from its connections.
  static constexpr size_t kPushedItemsMax = 8;
  // Low-priority items in one call of `process`. A high-priority item waits for at most this many.
  static constexpr size_t kLowItemsMax = 32;

  // REQUIRES: capacity > 0. `process` may be called from the first push on.
  Strand(size_t capacity, Process process) : capacity_(capacity), process_(std::move(process)) {}

  // Adds a high-priority `item`; false when the queue is full or closed. Never waits; combines if
  // no thread does. REQUIRES: the caller holds no lock that `process` takes.
  bool TryPush(Item item) { return TryPushAs(Priority::kHigh, std::move(item)); }
  // The same with low priority.
  bool TryPushLow(Item item) { return TryPushAs(Priority::kLow, std::move(item)); }

  // Like TryPush, but waits for room; false when the queue was closed first. The combining thread
  // does not wait, because only it makes room.
  bool Push(Item item) {
    {
      absl::MutexLock lock(&mutex_);
      const bool combines = combiner_ == std::this_thread::get_id();
      while (!closed_ && !combines && Waiting() >= capacity_) {
        ++waiting_pushes_;
        room_.Wait(&mutex_);
        --waiting_pushes_;
      }
      if (closed_) return false;
      if (!Add(Priority::kHigh, std::move(item))) return true;
    }
    CombineAsPusher();
    return true;
  }

  // Runs the fallback thread: takes over from pushing threads, and calls `process` about once an
  // `interval` or more often. Returns when the strand is closed and empty.
  void RunFallback(absl::Duration interval) {
    absl::MutexLock lock(&mutex_);
    while (true) {
      if (!fallback_is_next_ && !closed_) fallback_.WaitFor(&mutex_, interval);
      while (closed_ && busy_ && !fallback_is_next_) fallback_.Wait(&mutex_);
      if (busy_ && !fallback_is_next_) continue;  // a pushing thread combines
      busy_ = true;
      fallback_is_next_ = false;
      combiner_ = std::this_thread::get_id();
      do {
        TakeItems(Waiting());
        ProcessUnlocked();
      } while (Waiting() > 0);
      BecomeIdle();
      if (closed_) return;
    }
  }

  // Refuses further items, and wakes the fallback thread and the threads that wait in Push.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    fallback_.Signal();
    room_.SignalAll();
  }

  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return Waiting();
  }
  // How many items TryPush and TryPushLow refused because the queue was full: the metric of this
  // bound.
  uint64_t refused_count() const {
    absl::MutexLock lock(&mutex_);
    return refused_count_;
  }

 private:
  enum class Priority { kHigh, kLow };

  bool TryPushAs(Priority priority, Item item) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return false;
      if (Waiting() >= capacity_) {
        ++refused_count_;
        return false;
      }
      if (!Add(priority, std::move(item))) return true;
    }
    CombineAsPusher();
    return true;
  }

  size_t Waiting() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return high_.size() + low_.size(); }

  // Queues `item`. True: the strand was idle, and the calling thread is now its combiner.
  bool Add(Priority priority, Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    (priority == Priority::kHigh ? high_ : low_).push_back(std::move(item));
    if (busy_) return false;
    busy_ = true;
    combiner_ = std::this_thread::get_id();
    return true;
  }

  void CombineAsPusher() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (size_t left = kPushedItemsMax; left > 0 && Waiting() > 0;) {
      left -= TakeItems(left);
      ProcessUnlocked();
    }
    if (Waiting() == 0) return BecomeIdle();
    fallback_is_next_ = true;
    combiner_ = std::thread::id();
    fallback_.Signal();
  }

  // Moves at most `count` items to batch_; returns how many.
  size_t TakeItems(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    batch_.clear();
    TakeFrom(high_, count);
    TakeFrom(low_, std::min(count - batch_.size(), kLowItemsMax));
    if (waiting_pushes_ > 0) room_.SignalAll();
    return batch_.size();
  }

  void TakeFrom(std::deque<Item>& queue, size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto end = queue.begin() + static_cast<std::ptrdiff_t>(std::min(count, queue.size()));
    batch_.insert(batch_.end(), std::make_move_iterator(queue.begin()),
                  std::make_move_iterator(end));
    queue.erase(queue.begin(), end);
  }

  void ProcessUnlocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.Unlock();
    process_(batch_);
    batch_.clear();  // destroys what the items hold outside the lock
    mutex_.Lock();
  }

  void BecomeIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    busy_ = false;
    combiner_ = std::thread::id();
    if (closed_) fallback_.Signal();
  }

  const size_t capacity_;
  Process process_;          // called by the combining thread only
  std::vector<Item> batch_;  // used by the combining thread only; its room is reused
  mutable absl::Mutex mutex_;
  SteadyCondVar fallback_;
  absl::CondVar room_;
  // Bound: capacity, both classes together; the combining thread may exceed it by what `process`
  // pushes.
  std::deque<Item> high_ ABSL_GUARDED_BY(mutex_);
  // Bound: as high_.
  std::deque<Item> low_ ABSL_GUARDED_BY(mutex_);
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;              // a thread combines, or will
  bool fallback_is_next_ ABSL_GUARDED_BY(mutex_) = false;  // and has not begun
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread::id combiner_ ABSL_GUARDED_BY(mutex_);  // none when idle or about to fall back
  size_t waiting_pushes_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t refused_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem
