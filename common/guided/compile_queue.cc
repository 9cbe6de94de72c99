#include "common/guided/compile_queue.h"

#include <utility>

namespace tandem::guided {

CompileQueue::CompileQueue(Compile compile) : compile_(std::move(compile)) {
  thread_ = Thread("constraints", [this] { Run(); });
}

CompileQueue::~CompileQueue() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
  }
  thread_.Join();
}

bool CompileQueue::Add(const request::GuidedParams& params, Done& done) {
  absl::MutexLock lock(&mutex_);
  if (num_waiters_ >= kWaitersMax) return false;
  const auto found = waiters_.find(params);
  if (found != waiters_.end()) {
    found->second.push_back(std::move(done));
  } else {
    if (order_.size() >= kConstraintsMax) return false;
    order_.push_back(params);
    waiters_[params].push_back(std::move(done));
  }
  ++num_waiters_;
  return true;
}

void CompileQueue::Run() {
  for (;;) {
    request::GuidedParams params;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(this, &CompileQueue::Wakes));
      if (closed_) return;
      params = order_.front();
    }
    compile_(params);
    std::vector<Done> waiters;
    {
      // Take the waiters only now: requests with an equal constraint could join until here.
      absl::MutexLock lock(&mutex_);
      order_.pop_front();
      waiters = std::move(waiters_.extract(params).mapped());
      num_waiters_ -= waiters.size();
    }
    for (Done& done : waiters) done();
  }
}

}  // namespace tandem::guided
