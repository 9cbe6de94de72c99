// Work for one I/O thread and its connections. Other threads leave it here, and a burst of it (a
// step's tokens for hundreds of streams) wakes that thread once; or they do a little of it
// themselves while the I/O thread waits for events, which spares waking it.
//
// All that touches the thread's connections runs within the box's lock: the I/O thread's handlers
// by Enter, posted work, and what another thread runs by RunOrPost. Lock order: the I/O thread may
// wait for other locks within it; nobody else waits for it (RunOrPost only tries). Thread safety:
// any thread. Lifetime: outlives whoever may still post; what is posted after the I/O thread has
// ended is dropped with the box.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace tandem::router {

class IoStrand {
 public:
  using Work = absl::AnyInvocable<void()>;

  explicit IoStrand(boost::asio::io_context& context) : context_(context) {}

  boost::asio::io_context& context() const { return context_; }
  // Whether the caller is the I/O thread.
  bool OnIoThread() const { return context_.get_executor().running_in_this_thread(); }

  // Runs `handler`, one of the I/O thread's. REQUIRES: not within another.
  template <typename Handler>
  void Enter(Handler handler) {
    absl::MutexLock lock(&entered_);
    handler();
  }

  // Runs `work` on the I/O thread, in the order of the calls.
  void Post(Work work) {
    bool first = false;
    {
      absl::MutexLock lock(&mutex_);
      first = waiting_.empty();
      waiting_.push_back(std::move(work));
    }
    if (first) boost::asio::post(context_, [this] { RunAll(); });
  }

  // Runs `work` before it returns if the I/O thread is at nothing and nothing waits for it; else as
  // Post. For work that is short and blocks on nothing.
  void RunOrPost(Work work) {
    if (!OnIoThread() && entered_.TryLock()) {
      const bool idle = NothingWaits();
      if (idle) {
        work();
        work = nullptr;
      }
      entered_.Unlock();
      if (idle) return;
    }
    Post(std::move(work));
  }

 private:
  bool NothingWaits() {
    absl::MutexLock lock(&mutex_);
    return waiting_.empty();
  }

  void RunAll() {
    absl::MutexLock entered(&entered_);
    {
      absl::MutexLock lock(&mutex_);
      running_.swap(waiting_);
    }
    for (Work& work : running_) {
      work();
      work = nullptr;  // what it holds ends here, not with the burst
    }
    running_.clear();
  }

  boost::asio::io_context& context_;
  absl::Mutex entered_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  // Bound: connections_max; an answer wakes its connection once at a time.
  std::vector<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  // Bound: as waiting_, whose burst it was. Its room is kept.
  std::vector<Work> running_ ABSL_GUARDED_BY(entered_);
};

}  // namespace tandem::router
