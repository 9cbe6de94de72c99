#include "cli/top/cluster_sampler.h"

#include <utility>

#include "common/runtime/clock.h"

namespace tandem::cli {

ClusterSampler::ClusterSampler(Client& client, absl::Duration every)
    : client_(client), every_(every), thread_("top sampler", [this] { Run(); }) {}

ClusterSampler::~ClusterSampler() {
  {
    absl::MutexLock lock(&mutex_);
    over_ = true;
  }
  thread_.Join();
}

ClusterView ClusterSampler::View() const {
  absl::MutexLock lock(&mutex_);
  return view_;
}

void ClusterSampler::LookNow() {
  absl::MutexLock lock(&mutex_);
  wanted_ = true;
}

void ClusterSampler::SetPaused(bool paused) {
  absl::MutexLock lock(&mutex_);
  paused_ = paused;
}

void ClusterSampler::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto roused = [this]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return over_ || wanted_; };
      mutex_.AwaitWithTimeout(absl::Condition(&roused), every_);
      if (over_) return;
      if (paused_ && !wanted_) continue;
      wanted_ = false;
    }
    Look();
  }
}

void ClusterSampler::Look() {
  absl::StatusOr<v1::GetStatusResponse> status = client_.GetStatus(kCallTimeout);
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    view_.error = status.status();
    return;
  }
  absl::StatusOr<v1::ListRequestsResponse> requests = client_.ListRequests(kRequests, kCallTimeout);
  ClusterSample sample{.at = RealClock().Now(), .status = *std::move(status), .requests = {}};
  if (requests.ok()) sample.requests = *std::move(requests);
  absl::MutexLock lock(&mutex_);
  view_.Add(std::move(sample), requests.status());
}

}  // namespace tandem::cli
