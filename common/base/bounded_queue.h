// A bounded queue between threads of one process: any thread adds items, any thread takes them.
//
// Thread safety: any thread may call any method.
// Invariants: size() <= capacity(). After Close() the queue accepts nothing more, and Pop returns
// the items that are left.
// Owner: the object that owns the consuming thread.
#pragma once

#include <cstddef>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"

namespace tandem {

template <typename T>
class BoundedQueue {
 public:
  // REQUIRES: capacity > 0.
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) {}

  // Adds `item`; false when the queue is full or closed. Never blocks.
  bool TryPush(T item) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || items_.size() >= capacity_) {
      if (!closed_) ++refused_count_;
      return false;
    }
    Add(std::move(item));
    return true;
  }

  // Waits for room; false when the queue was closed first.
  bool Push(T item) {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(this, &BoundedQueue::HasRoomOrClosed));
    if (closed_) return false;
    Add(std::move(item));
    return true;
  }

  // Takes the oldest item, waiting at most `timeout`; nullopt on timeout or when closed and empty.
  // With a timeout of zero it never sleeps.
  std::optional<T> Pop(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    AwaitItem(timeout);
    if (items_.empty()) return std::nullopt;
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

  // Takes everything, waiting at most `timeout` for the first item. With a timeout of zero it never
  // sleeps.
  std::vector<T> PopAll(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    AwaitItem(timeout);
    std::vector<T> all(std::make_move_iterator(items_.begin()),
                       std::make_move_iterator(items_.end()));
    items_.clear();
    return all;
  }

  // Wakes every waiting thread: Push returns false, Pop returns what is left.
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    arrived_.SignalAll();
  }

  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }
  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }
  // How many items TryPush refused because the queue was full: the metric of this bound.
  uint64_t refused_count() const {
    absl::MutexLock lock(&mutex_);
    return refused_count_;
  }

 private:
  void Add(T item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    items_.push_back(std::move(item));
    if (waiting_ > 0) arrived_.Signal();
  }
  void AwaitItem(absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    // A wait of zero would let the thread sleep for the 50 us by which the kernel may be late with
    // any timer.
    if (timeout <= absl::ZeroDuration() || HasItemOrClosed()) return;
    ++waiting_;
    arrived_.WaitFor(&mutex_, timeout,
                     [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return HasItemOrClosed(); });
    --waiting_;
  }
  bool HasRoomOrClosed() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return closed_ || items_.size() < capacity_;
  }
  bool HasItemOrClosed() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return closed_ || !items_.empty();
  }

  const size_t capacity_;
  mutable absl::Mutex mutex_;
  std::deque<T> items_ ABSL_GUARDED_BY(mutex_);
  SteadyCondVar arrived_;
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that wait for an item
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t refused_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem
