// A flag that one thread sets and others wait for, by the steady clock (SteadyCondVar).
// Thread safety: any thread may call any method.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"

namespace tandem {

class SteadyFlag {
 public:
  void Set(bool value) {
    absl::MutexLock lock(&mutex_);
    value_ = value;
    if (value) set_.SignalAll();
  }
  // Waits until the flag is set, for `timeout` at most; says whether it is.
  bool Await(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    set_.WaitFor(&mutex_, timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return value_; });
    return value_;
  }

 private:
  absl::Mutex mutex_;
  bool value_ ABSL_GUARDED_BY(mutex_) = false;
  SteadyCondVar set_;
};

}  // namespace tandem
