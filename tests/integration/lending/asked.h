// A request that a test follows while its answer comes.
// Thread safety: the test's thread uses it.
#pragma once

#include <thread>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "tests/testing/test_cluster.h"

namespace tandem::testing {

// A request, on a thread of its own, whose progress can be awaited.
class Asked {
 public:
  Asked(cli::Client& client, const v1::GenerateRequest& request)
      : thread_([this, &client, request] {
          Answer answer = Collect(client, request, [this](const Answer& so_far) {
            absl::MutexLock lock(&mutex_);
            tokens_ = so_far.tokens.size();
          });
          absl::MutexLock lock(&mutex_);
          answer_ = std::move(answer);
          ended_ = true;
        }) {}
  ~Asked() { thread_.join(); }

  // Whether so many tokens came in time.
  bool AwaitTokens(size_t count) {
    const auto there = [&]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return tokens_ >= count || ended_; };
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&there), absl::Seconds(120));
    return tokens_ >= count;
  }
  size_t tokens() {
    absl::MutexLock lock(&mutex_);
    return tokens_;
  }
  Answer AwaitEnd() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&ended_));
    return answer_;
  }

 private:
  absl::Mutex mutex_;
  Answer answer_ ABSL_GUARDED_BY(mutex_);
  size_t tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::testing
