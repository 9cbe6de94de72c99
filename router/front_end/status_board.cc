#include "router/front_end/status_board.h"

#include <utility>

#include "router/core/router_core.h"

namespace tandem::router {

bool StatusBoard::MayMake(absl::Time now) {
  if (now - second_began_ >= absl::Seconds(1)) {
    second_began_ = now;
    made_ = 0;
  }
  if (made_ >= kFreshPerSecond) return false;
  ++made_;
  return true;
}

void StatusBoard::Read(absl::Time now, Done done) {
  bool joins = false, makes = false;
  Status last;
  {
    absl::MutexLock lock(&mutex_);
    // The status that is being made is new enough: the core had done all that this caller has seen.
    joins = making_ && waiting_.size() < kWaitingMax;
    makes = !making_ && MayMake(now);
    if (joins || makes) waiting_.push_back(std::move(done));
    making_ = making_ || makes;
    last = last_;
  }
  if (joins) return;
  if (!makes) return done(last);
  const bool pushed = inbox_.TryPush(CoreCall{[this](RouterCore& core, absl::Time at) {
    Publish(std::make_shared<const v1::GetStatusResponse>(core.GetStatus(at)));
  }});
  if (!pushed) Publish(nullptr);
}

void StatusBoard::Publish(const Status& status) {
  std::vector<Done> waiting;
  {
    absl::MutexLock lock(&mutex_);
    if (status != nullptr) last_ = status;
    making_ = false;
    waiting.swap(waiting_);
  }
  for (const Done& done : waiting) done(status);
}

}  // namespace tandem::router
