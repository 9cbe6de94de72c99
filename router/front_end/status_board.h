// The router's status for metrics, GetStatus and /load. Making it takes the core's time, in
// proportion to the fleet, so callers share it: at most kFreshPerSecond are made a second, and
// further callers get the last one, which is at most a second old. However many callers there are,
// requests lose the same small share of the core's time.
//
// Thread safety: any thread.
// Owner: RouterServer; the inbox outlives it, and its items are processed before its destruction.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/front_end/inbox.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

class StatusBoard {
 public:
  static constexpr int kFreshPerSecond = 50;
  // Callers that wait for one status; more get the last one.
  static constexpr size_t kWaitingMax = 1024;

  using Status = std::shared_ptr<const v1::GetStatusResponse>;
  // Called once, on the caller's thread or on the core's strand; must not block. The status is null
  // when there is none: the router's inbox is full, or the router is shutting down.
  using Done = std::function<void(const Status&)>;

  explicit StatusBoard(Inbox& inbox) : inbox_(inbox) {}

  // Calls `done` with the status: made after this call, unless too many were asked for.
  void Read(absl::Time now, Done done);

 private:
  // Whether one more may be made now; counts it.
  bool MayMake(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Publish(const Status& status);

  Inbox& inbox_;
  absl::Mutex mutex_;
  Status last_ ABSL_GUARDED_BY(mutex_);
  absl::Time second_began_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  int made_ ABSL_GUARDED_BY(mutex_) = 0;         // in that second
  bool making_ ABSL_GUARDED_BY(mutex_) = false;  // the core has been asked for one
  // Bound: kWaitingMax (1,024).
  std::vector<Done> waiting_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router
