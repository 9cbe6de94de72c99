// A bounded queue whose items one thread at a time works off: the thread that brings an item does
// so itself when nobody else is at it, and otherwise leaves the item to whoever is. On an idle
// machine an event is thus dealt with where it arrives, without waking another thread; under load
// one thread works while the others queue.
//
// Items have two lanes: what is pushed late waits until nothing of the other lane does, and is then
// worked off a few at a time. New work may so wait while what was begun goes on.
//
//   free ─push─▶ a guest has the turn ─queue empty─▶ free
//                  └─ kGuestItems worked off, more waits ─▶ handed over to the host ─queue empty─▶
//                  free
//
// A guest is any thread that pushes; it has other things to do and never works off more than
// kGuestItems. The host is a thread of the queue's owner: it takes over from guests, and works once
// an interval even when nothing is brought (deadlines).
//
// Thread safety: all methods may be called from any thread; Host by one. `work` is called by one
// thread at a time, with no lock held, and what one call wrote the next one sees.
// Invariants: the items of a lane are worked off in the order of their pushes; when an item waits,
// somebody has the turn or was handed it; after Close() nothing is accepted, and Host returns when
// all is worked off. What `work` pushes is worked off after it, not within it.
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

namespace tandem {

template <typename Item>
class TurnQueue {
 public:
  // Works off `items`, the oldest first; none when the host's interval is over. Must not block.
  using Work = absl::AnyInvocable<void(std::vector<Item>& items)>;

  // What a guest works off before it hands over: enough for events that met by chance, too little
  // to keep an I/O thread from its connections.
  static constexpr size_t kGuestItems = 8;
  // Late items that one call of `work` gets: as many as the others may wait for.
  static constexpr size_t kLateItems = 32;

  // REQUIRES: capacity > 0. `work` is called from the first push on.
  TurnQueue(size_t capacity, Work work) : capacity_(capacity), work_(std::move(work)) {}

  // Adds `item` unless the queue is full or closed; says whether it did. Never waits; takes the
  // turn if it is free. REQUIRES: the caller holds no lock that `work` takes.
  bool TryPush(Item item) { return TryPushTo(Lane::kFirst, std::move(item)); }
  // The same into the late lane.
  bool TryPushLate(Item item) { return TryPushTo(Lane::kLate, std::move(item)); }

  // Like TryPush, but waits for room; false when the queue was closed first. Who has the turn does
  // not wait: it is the one that makes room.
  bool Push(Item item) {
    {
      absl::MutexLock lock(&mutex_);
      const bool has_turn = worker_ == std::this_thread::get_id();
      while (!closed_ && !has_turn && Waiting() >= capacity_) {
        ++waiting_;
        room_.Wait(&mutex_);
        --waiting_;
      }
      if (closed_) return false;
      if (!AddAndTake(Lane::kFirst, std::move(item))) return true;
    }
    WorkAsGuest();
    return true;
  }

  // Takes over from guests and works at least about every `interval`, until the queue is closed and
  // empty.
  void Host(absl::Duration interval) {
    absl::MutexLock lock(&mutex_);
    while (true) {
      if (!handed_over_ && !closed_) host_.WaitWithTimeout(&mutex_, interval);
      while (closed_ && taken_ && !handed_over_) host_.Wait(&mutex_);
      if (taken_ && !handed_over_) continue;  // a guest is at it
      taken_ = true;
      handed_over_ = false;
      worker_ = std::this_thread::get_id();
      do {
        TakeItems(Waiting());
        WorkUnlocked();
      } while (Waiting() > 0);
      Release();
      if (closed_) return;
    }
  }

  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    host_.Signal();
    room_.SignalAll();
  }

  size_t size() const {
    absl::MutexLock lock(&mutex_);
    return Waiting();
  }
  // How often TryPush met a full queue: the metric of this bound.
  uint64_t refused_count() const {
    absl::MutexLock lock(&mutex_);
    return refused_count_;
  }

 private:
  enum class Lane { kFirst, kLate };

  bool TryPushTo(Lane lane, Item item) {
    {
      absl::MutexLock lock(&mutex_);
      if (closed_) return false;
      if (Waiting() >= capacity_) {
        ++refused_count_;
        return false;
      }
      if (!AddAndTake(lane, std::move(item))) return true;
    }
    WorkAsGuest();
    return true;
  }

  size_t Waiting() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return items_.size() + late_.size(); }

  // True: the caller has the turn now.
  bool AddAndTake(Lane lane, Item item) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    (lane == Lane::kFirst ? items_ : late_).push_back(std::move(item));
    if (taken_) return false;
    taken_ = true;
    worker_ = std::this_thread::get_id();
    return true;
  }

  void WorkAsGuest() ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    for (size_t left = kGuestItems; left > 0 && Waiting() > 0;) {
      left -= TakeItems(left);
      WorkUnlocked();
    }
    if (Waiting() == 0) return Release();
    handed_over_ = true;
    worker_ = std::thread::id();
    host_.Signal();
  }

  // Moves at most `count` items to batch_; returns how many.
  size_t TakeItems(size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    batch_.clear();
    TakeFrom(items_, count);
    TakeFrom(late_, std::min(count - batch_.size(), kLateItems));
    if (waiting_ > 0) room_.SignalAll();
    return batch_.size();
  }

  void TakeFrom(std::deque<Item>& lane, size_t count) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const auto end = lane.begin() + static_cast<std::ptrdiff_t>(std::min(count, lane.size()));
    batch_.insert(batch_.end(), std::make_move_iterator(lane.begin()),
                  std::make_move_iterator(end));
    lane.erase(lane.begin(), end);
  }

  void WorkUnlocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    mutex_.Unlock();
    work_(batch_);
    batch_.clear();  // what items hold ends here, outside the lock
    mutex_.Lock();
  }

  void Release() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    taken_ = false;
    worker_ = std::thread::id();
    if (closed_) host_.Signal();
  }

  const size_t capacity_;
  Work work_;                // whoever has the turn
  std::vector<Item> batch_;  // as work_; its room is kept
  mutable absl::Mutex mutex_;
  absl::CondVar host_, room_;
  // Bound: capacity, both lanes together; whoever has the turn may exceed it by what its work
  // pushes.
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  // Bound: as items_.
  std::deque<Item> late_ ABSL_GUARDED_BY(mutex_);
  bool taken_ ABSL_GUARDED_BY(mutex_) = false;        // somebody has the turn, or was handed it
  bool handed_over_ ABSL_GUARDED_BY(mutex_) = false;  // to the host, which has not begun
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread::id worker_ ABSL_GUARDED_BY(mutex_);  // who has the turn; none when handed over
  size_t waiting_ ABSL_GUARDED_BY(mutex_) = 0;      // pushes that wait for room
  uint64_t refused_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem
