// How often `tandem up` starts one process again. A process that ends at once each time is given
// up; one that ran well in between starts afresh, however often it ended in the weeks before.
// Thread safety: by its owner.
#pragma once

#include "absl/time/time.h"

namespace tandem::cli {

class RestartCount {
 public:
  // Without a run of kRanWell between them.
  static constexpr int kRestartsMax = 5;
  static constexpr absl::Duration kRanWell = absl::Minutes(5);

  void Started(absl::Time now) { started_ = now; }
  // The process ended: whether it is to be started again.
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
