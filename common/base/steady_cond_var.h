// A condition variable whose timed waits go by the steady clock. Those of absl::CondVar and
// absl::Mutex go by the wall clock: when somebody sets that back by hours, a wait of a second
// becomes one of hours, and a node whose heartbeats wait so long is taken for lost.
// Thread safety: as a condition variable; any thread may call any method.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem {

class SteadyCondVar {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  // The time `timeout` from now. Longer timeouts than kTimeoutMax count as that.
  static TimePoint After(absl::Duration timeout) {
    return std::chrono::steady_clock::now() +
           absl::ToChronoMicroseconds(std::min(timeout, kTimeoutMax));
  }

  // All three return after a signal, or without a reason, as condition variables do; WaitUntil
  // returns false once `deadline` has passed. REQUIRES: the caller holds `mutex`.
  void Wait(absl::Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{*mutex};
    cond_var_.wait(lockable);
  }
  bool WaitUntil(absl::Mutex* mutex, TimePoint deadline) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    Lockable lockable{*mutex};
    return cond_var_.wait_until(lockable, deadline) == std::cv_status::no_timeout;
  }
  void WaitFor(absl::Mutex* mutex, absl::Duration timeout) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    WaitUntil(mutex, After(timeout));
  }

  void Signal() { cond_var_.notify_one(); }
  void SignalAll() { cond_var_.notify_all(); }

 private:
  static constexpr absl::Duration kTimeoutMax = absl::Hours(24 * 365);

  // What the standard library wants of a mutex.
  struct Lockable {
    absl::Mutex& mutex;
    void lock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Lock(); }
    void unlock() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex.Unlock(); }
  };

  std::condition_variable_any cond_var_;
};

}  // namespace tandem
