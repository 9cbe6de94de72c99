// The answers that a router has begun and not yet given to their clients whole, wherever they are:
// on a thread that reads them, in a queue for constraints, in the core, or in an unread buffer. A
// draining router begins none and waits for these.
// Thread safety: any thread may call any method. Owner: RouterServer; it outlives the guards.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/steady_cond_var.h"

namespace tandem::router {

class RunningAnswers {
 public:
  // Held, with its copies, for as long as the answer goes on.
  using Guard = std::shared_ptr<const void>;

  // A guard for one more answer. kUnavailable once the router drains.
  absl::StatusOr<Guard> Enter();
  // Enter fails from now on.
  void BeginDrain();
  bool draining() const;
  // Waits until no guard is held, for `timeout` at most; says whether none is.
  bool AwaitNone(absl::Duration timeout);

 private:
  void Leave();

  mutable absl::Mutex mutex_;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  int64_t guards_ ABSL_GUARDED_BY(mutex_) = 0;
  SteadyCondVar left_;  // with mutex_: the last guard was released
};

}  // namespace tandem::router
