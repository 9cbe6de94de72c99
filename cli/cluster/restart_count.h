// How often `tandem up` restarts one process. It gives up a process that ends soon after each
// start. A run of kRanWell sets the count back to zero.
//
// Thread safety: the owner's thread only. Owner: the process's entry in a ProcessCluster.
#pragma once

#include "absl/time/time.h"

namespace tandem::cli {

class RestartCount {
 public:
  // Restarts without a run of kRanWell between them.
  static constexpr int kRestartsMax = 5;
  static constexpr absl::Duration kRanWell = absl::Minutes(5);

  void Started(absl::Time now) { started_ = now; }
  // Call when the process ended. Returns whether to restart it.
  bool Ended(absl::Time now) {
    if (now - started_ >= kRanWell) restarts_ = 0;
    if (restarts_ >= kRestartsMax) return false;
    ++restarts_;
    return true;
  }

 private:
  absl::Time started_ = absl::InfiniteFuture();
  int restarts_ = 0;
};

}  // namespace tandem::cli
