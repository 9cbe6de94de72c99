#include "router/front_end/running_answers.h"

namespace tandem::router {

absl::StatusOr<RunningAnswers::Guard> RunningAnswers::Enter() {
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return absl::UnavailableError("this router is draining; ask another");
    ++guards_;
  }
  return Guard(this, [this](const void*) { Leave(); });
}

void RunningAnswers::BeginDrain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool RunningAnswers::draining() const {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

bool RunningAnswers::AwaitNone(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  left_.WaitFor(&mutex_, timeout, [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return guards_ == 0; });
  return guards_ == 0;
}

void RunningAnswers::Leave() {
  absl::MutexLock lock(&mutex_);
  if (--guards_ == 0) left_.SignalAll();
}

}  // namespace tandem::router
