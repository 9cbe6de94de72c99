// Runs work for one I/O thread and its connections, one piece at a time.
//
// Other threads give their work to the I/O thread by Post. A burst of work (the tokens of one step,
// for hundreds of streams) wakes that thread once. By RunOrPost, a thread runs a little work itself
// while the I/O thread waits for events, which saves waking it.
//
// Invariant: whatever touches the thread's connections holds `entered_`: the I/O thread's handlers
// (Enter), posted work, and work that another thread runs (RunOrPost). Two pieces of work never run
// at the same time.
// Lock order: the I/O thread may wait for other locks while it holds `entered_`. Other threads
// never wait for `entered_`; RunOrPost only tries to take it.
// Thread safety: any thread.
// Owner: the server's worker; it outlives all threads that may post. Work posted after the I/O
// thread has ended is destroyed with the strand, unrun.
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

  // Runs `handler` on the calling thread. REQUIRES: on the I/O thread; not within other work.
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

  // Runs `work` on the calling thread if the I/O thread is idle and no work waits for it; else as
  // Post. REQUIRES: `work` is short and does not block.
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
      work = nullptr;  // destroys what it holds now, not after the burst
    }
    running_.clear();
  }

  boost::asio::io_context& context_;
  absl::Mutex entered_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  // Bound: connections_max, because an answer has at most one piece of work waiting.
  std::vector<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  // The burst that runs. Bound: as waiting_. Its memory is kept for the next burst.
  std::vector<Work> running_ ABSL_GUARDED_BY(entered_);
};

}  // namespace tandem::router
