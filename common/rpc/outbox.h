// The messages of one stream that wait for the one write gRPC allows at a time.
// Thread safety: any thread. `start_write` is called with no lock held, never twice without a
// Written between.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::rpc {

template <typename Message>
class Outbox {
 public:
  explicit Outbox(size_t capacity) : capacity_(capacity) {}

  // Queues `message`. True: nothing was being written, the caller now writes current(). False: it
  // waits, or was dropped because the box is closed or full (overflowed() tells).
  bool Add(Message message) {
    absl::MutexLock lock(&mutex_);
    if (closed_ || last_) return false;
    if (waiting_.size() >= capacity_) {
      overflowed_ = true;
      return false;
    }
    waiting_.push_back(std::move(message));
    return StartNext();
  }

  // Like Add for the message after which nothing comes: accepted beyond the capacity; drained()
  // follows it.
  bool AddLast(Message message) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    last_ = true;
    waiting_.push_back(std::move(message));
    return StartNext();
  }

  // Nothing more is accepted; what waits is still written. True: nothing is, drained() holds.
  // Otherwise it does after the last Written, unless the box is closed.
  bool Finish() {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    last_ = true;
    return !writing_ && waiting_.empty();
  }

  // The write of current() ended. True: the caller writes the new current().
  bool Written() {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    return StartNext();
  }

  // Nothing more is accepted; what waits is dropped. True when no write is under way.
  bool Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    waiting_.clear();
    return !writing_;
  }

  // The message being written: stable until Written.
  const Message* current() const { return &current_; }
  // The last message was written.
  bool drained() const {
    absl::MutexLock lock(&mutex_);
    return last_ && !writing_ && waiting_.empty();
  }
  bool overflowed() const {
    absl::MutexLock lock(&mutex_);
    return overflowed_;
  }
  bool closed() const {
    absl::MutexLock lock(&mutex_);
    return closed_;
  }

 private:
  bool StartNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || closed_ || waiting_.empty()) return false;
    current_ = std::move(waiting_.front());
    waiting_.pop_front();
    writing_ = true;
    return true;
  }

  const size_t capacity_;
  mutable absl::Mutex mutex_;
  // Bound: its capacity: 65,536 to a node or router, 16,384 to a client; then the stream ends.
  std::deque<Message> waiting_ ABSL_GUARDED_BY(mutex_);
  Message current_;  // owned by the writer between Add/Written returning true and Written
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool last_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::rpc
