#include "router/core/admission_queue.h"

namespace tandem::router {

void AdmissionQueue::PlaceAll(absl::FunctionRef<Attempt(Serial)> place,
                              absl::FunctionRef<void(Serial)> placed) {
  int passed = 0, visited = 0;
  for (auto it = queue_.begin(); it != queue_.end() && visited < kVisitedMax; ++visited) {
    const std::pair<int32_t, Serial> entry = *it;
    const Attempt attempt = place(entry.second);
    if (!attempt.failure.has_value()) {
      queue_.erase(entry);
      placed(entry.second);
      it = queue_.upper_bound(entry);
      continue;
    }
    if (*attempt.failure == PlacementFailure::kNoDecodeNode) return;
    // A sequence that no present node can hold, or that backs off, does not hold up others.
    if (*attempt.failure == PlacementFailure::kNoRoom &&
        (attempt.waited > kFirstInLineAfter || ++passed >= kPassedMax))
      return;
    ++it;
  }
}

}  // namespace tandem::router
