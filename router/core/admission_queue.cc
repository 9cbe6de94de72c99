#include "router/core/admission_queue.h"

#include <algorithm>

namespace tandem::router {

absl::Time AdmissionQueue::RankOf(absl::Time arrived, int32_t priority, absl::Duration level,
                                  absl::Duration most) {
  return arrived + std::clamp(priority * level, -most, most);
}

void AdmissionQueue::PlaceAll(Owner& owner) {
  Walk walk;
  for (auto it = queue_.begin(); it != queue_.end() && !walk.over;) {
    if (++walk.visited > kVisitedMax || walk.tried >= kTriedMax) return;
    const Place place = *it;
    if (!Try(place.serial, owner, walk)) {
      ++it;
      continue;
    }
    queue_.erase(place);
    owner.OnPlaced(place.serial);
    it = queue_.upper_bound(place);
  }
}

bool AdmissionQueue::Try(Serial serial, Owner& owner, Walk& walk) {
  const int64_t needed = owner.TokensNeeded(serial);
  // An older one that needs no more found no room.
  if (needed >= walk.no_room_for) return false;
  ++walk.tried;
  const Attempt attempt = owner.TryToPlace(serial);
  if (!attempt.failure.has_value()) return true;
  // A sequence that no present node can hold, or that backs off, says nothing about others.
  walk.over = *attempt.failure == PlacementFailure::kNoDecodeNode;
  if (*attempt.failure != PlacementFailure::kNoRoom) return false;
  if (needed > 0) walk.no_room_for = needed;
  if (attempt.waited > kKeepRoomAfter && walk.kept < kKeptMax) {
    ++walk.kept;
    owner.KeepRoomFor(serial);
  }
  if (++walk.failed >= kFailedMax) walk.over = true;
  return false;
}

}  // namespace tandem::router
