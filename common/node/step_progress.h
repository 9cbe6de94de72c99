// Whether a node's engine gets on: with work it has to finish a step within a time, and steps that
// fail are no progress. A device that is broken for good fails each step at once; its node looks
// idle between requests, so failures in a row count as well.
// Thread safety: the engine thread calls the On functions; any thread calls live. Owner:
// NodeRuntime.
#pragma once

#include <atomic>
#include <cstdint>

#include "absl/time/time.h"

namespace tandem::node {

class StepProgress {
 public:
  // Fewer failures in a row may be those of one bad request that is tried again.
  static constexpr int64_t kFailuresMax = 8;

  explicit StepProgress(absl::Duration deadline) : deadline_(deadline) {}

  // There is nothing to compute.
  void OnIdle() { busy_ = false; }
  void OnStepBegins(absl::Time now) {
    if (!busy_) last_ms_ = absl::ToUnixMillis(now);  // before live() may look at it
    busy_ = true;
  }
  // Says whether this is the failure from which on they count as a fault of the node.
  bool OnStepEnds(bool ok, absl::Time now) {
    if (ok) {
      last_ms_ = absl::ToUnixMillis(now);
      failures_ = 0;
      return false;
    }
    if (failures_ == 0) failing_since_ms_ = absl::ToUnixMillis(now);
    return ++failures_ == kFailuresMax;
  }

  // False when a step has not ended well for the deadline while there was work, or when
  // kFailuresMax steps or more have failed in a row and the first of them is so long ago.
  bool live(absl::Time now) const {
    const auto is_old = [&](int64_t ms) { return now - absl::FromUnixMillis(ms) >= deadline_; };
    return !(busy_ && is_old(last_ms_)) &&
           !(failures_ >= kFailuresMax && is_old(failing_since_ms_));
  }

 private:
  const absl::Duration deadline_;
  std::atomic<bool> busy_{false};
  std::atomic<int64_t> last_ms_{0};           // a step that ended well, or work after a pause
  std::atomic<int64_t> failing_since_ms_{0};  // valid while failures_ > 0
  std::atomic<int64_t> failures_{0};          // in a row
};

}  // namespace tandem::node
