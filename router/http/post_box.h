// Work that other threads leave for one I/O thread: a burst of it (a step's tokens for hundreds of
// streams) wakes that thread once.
// Thread safety: any thread. Lifetime: outlives whoever may still post; what is posted after the
// I/O thread has ended is dropped with the box.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace tandem::router {

class PostBox {
 public:
  using Work = absl::AnyInvocable<void()>;

  explicit PostBox(boost::asio::io_context& context) : context_(context) {}

  boost::asio::io_context& context() const { return context_; }

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

 private:
  void RunAll() {
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
  absl::Mutex mutex_;
  // Bound: connections_max; an answer wakes its connection once at a time.
  std::vector<Work> waiting_ ABSL_GUARDED_BY(mutex_);
  // Bound: as waiting_, whose burst it was; the I/O thread's. Its room is kept.
  std::vector<Work> running_;
};

}  // namespace tandem::router
