// A condition variable whose timed waits go by the steady clock. Those of absl::CondVar and
// absl::Mutex go by the wall clock: when NTP or an operator sets that back by hours, a wait of a
// second becomes one of hours, and a node whose heartbeats wait so long is taken for lost.
// Thread safety: as a condition variable; any thread may call any method.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

class SteadyCondVar {
 public:
  // Longer timeouts count as this.
  static constexpr absl::Duration kTimeoutMax = absl::Hours(24 * 365);

  // Waits for a signal; may return without one. REQUIRES: the caller holds `mutex`.
  void Wait(absl::Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{*mutex};
    cond_var_.wait(lockable);
  }
  // The same for `timeout` at most.
  void WaitFor(absl::Mutex* mutex, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{*mutex};
    cond_var_.wait_for(lockable, Bounded(timeout));
  }
  // Waits until done() after a signal, for `timeout` at most; calls it with `mutex` held.
  template <typename Done>
  void WaitFor(absl::Mutex* mutex, absl::Duration timeout, Done done)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{*mutex};
    cond_var_.wait_for(lockable, Bounded(timeout), std::move(done));
  }

  void Signal() { cond_var_.notify_one(); }
  void SignalAll() { cond_var_.notify_all(); }

 private:
  // What the standard library wants of a mutex.
  struct Lockable {
    absl::Mutex& mutex;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
  };

  static std::chrono::microseconds Bounded(absl::Duration timeout) {
    return absl::ToChronoMicroseconds(std::min(timeout, kTimeoutMax));
  }

  // Its waits for a duration go by the steady clock.
  std::condition_variable_any cond_var_;
};

}  // namespace tandem
