// The queue of messages that wait to be written to one stream: gRPC allows one write at a time. The
// outbox does no I/O. A method that returns true makes its caller responsible for the next write.
// Thread safety: any thread may call any method. Between a true from Add, AddLast or Written and
// the next Written, only the writing thread uses current(). Owner: the stream's reactor.
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

  // Queues `message`. True: no write was under way, and the caller must write current(). False: the
  // message waits, or was dropped because the outbox is closed or full (see overflowed()).
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

  // Like Add, for the stream's last message: it is accepted even beyond the capacity. drained()
  // holds once it is written.
  bool AddLast(Message message) {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    last_ = true;
    waiting_.push_back(std::move(message));
    return StartNext();
  }

  // Refuses further messages; those that wait are still written. True: none waits, and drained()
  // holds. Otherwise drained() holds after the last Written, unless the outbox is closed first.
  bool Finish() {
    absl::MutexLock lock(&mutex_);
    if (closed_) return false;
    last_ = true;
    return !writing_ && waiting_.empty();
  }

  // Reports that the write of current() ended. True: the caller must write the new current().
  bool Written() {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    return StartNext();
  }

  // Refuses further messages and drops those that wait. True when no write is under way.
  bool Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    waiting_.clear();
    return !writing_;
  }

  // The message to write; it stays unchanged until Written.
  const Message* current() const { return &current_; }
  // Whether the last message was written.
  bool drained() const {
    absl::MutexLock lock(&mutex_);
    return last_ && !writing_ && waiting_.empty();
  }
  // Whether Add has ever dropped a message because the outbox was full.
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
  Message current_;  // not guarded: used by the writing thread alone while writing_
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool last_ ABSL_GUARDED_BY(mutex_) = false;
  bool overflowed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace tandem::rpc
