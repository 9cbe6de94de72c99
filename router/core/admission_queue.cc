#include "router/core/admission_queue.h"

#include <algorithm>

namespace tandem::router {

absl::Time AdmissionQueue::RankOf(absl::Time arrived, int32_t priority, absl::Duration level,
                                  absl::Duration most) {
  return arrived + std::clamp(priority * level, -most, most);
}

template <typename Change>
void AdmissionQueue::Alter(const std::string& tenant, Change change) {
  Line& line = lines_.at(tenant);
  const auto waits = [&] { return !line.aside && !line.places.empty(); };
  if (waits()) turns_.erase({line.counter, tenant});
  size_ -= line.places.size();
  change(line);
  size_ += line.places.size();
  if (waits()) turns_.insert({line.counter, tenant});
}

void AdmissionQueue::Join(const std::string& tenant, double weight) {
  lines_.try_emplace(tenant);
  Alter(tenant, [&](Line& line) {
    ++line.requests;
    line.weight = weight;
  });
}

void AdmissionQueue::Leave(const std::string& tenant) {
  if (--lines_.at(tenant).requests == 0) lines_.erase(tenant);
}

void AdmissionQueue::Charge(const std::string& tenant, int64_t tokens) {
  if (tokens == 0) return;
  Line& line = lines_.at(tenant);
  const double counter = line.counter + static_cast<double>(tokens) / line.weight;
  // Mostly nothing of the tenant waits, so it has no turn to move.
  if (line.places.empty())
    line.counter = counter;
  else
    Alter(tenant, [counter](Line& waiting) { waiting.counter = counter; });
}

void AdmissionQueue::Insert(const std::string& tenant, const Place& place) {
  ++inserted_;
  Alter(tenant, [&](Line& line) {
    if (line.places.empty()) line.counter = std::max(line.counter, floor_);
    line.places.insert(place);
  });
}

void AdmissionQueue::Erase(const std::string& tenant, const Place& place) {
  Alter(tenant, [&](Line& line) { line.places.erase(place); });
}

bool AdmissionQueue::Contains(const std::string& tenant, const Place& place) const {
  const auto line = lines_.find(tenant);
  return line != lines_.end() && line->second.places.contains(place);
}

std::optional<AdmissionQueue::Place> AdmissionQueue::NextOf(const std::string& tenant,
                                                            const Walk& walk) const {
  const absl::btree_set<Place>& places = lines_.at(tenant).places;
  const auto tried = walk.tried_last.find(tenant);
  const auto next =
      tried == walk.tried_last.end() ? places.begin() : places.upper_bound(tried->second);
  return next == places.end() ? std::nullopt : std::optional(*next);
}

void AdmissionQueue::SetAside(const std::string& tenant, bool aside) {
  if (lines_.contains(tenant)) Alter(tenant, [&](Line& line) { line.aside = aside; });
}

// Takes the tenants in rounds. A tenant's turn ends with the first of its sequences that is not
// placed, and its next turn comes after all others had theirs. So one tenant's sequences without
// room do not use up the walk.
bool AdmissionQueue::PlaceAll(Owner& owner) {
  Walk walk;
  bool complete = true;
  std::vector<std::string> to_go_on, ended;
  while (!walk.over) {
    if (turns_.empty()) {
      for (const std::string& tenant : to_go_on) SetAside(tenant, false);
      to_go_on.clear();
    }
    if (turns_.empty()) break;
    const std::string tenant = turns_.begin()->second;
    complete = ++walk.visited <= kVisitedMax && walk.tried < kTriedMax;
    if (!complete) break;
    const std::optional<Place> place = NextOf(tenant, walk);
    if (place.has_value() && Try(place->serial, owner, walk)) {
      floor_ = std::max(floor_, turns_.begin()->first);
      Erase(tenant, *place);
      owner.OnPlaced(place->serial);
      continue;
    }
    SetAside(tenant, true);
    (place.has_value() ? to_go_on : ended).push_back(tenant);
    if (place.has_value()) walk.tried_last[tenant] = *place;
  }
  for (const std::string& tenant : to_go_on) SetAside(tenant, false);
  for (const std::string& tenant : ended) SetAside(tenant, false);
  return complete;
}

bool AdmissionQueue::Try(Serial serial, Owner& owner, Walk& walk) {
  const int64_t needed = owner.TokensNeeded(serial);
  // An older sequence that needs no more tokens found no room.
  if (needed >= walk.no_room_for) return false;
  ++walk.tried;
  const Attempt attempt = owner.TryToPlace(serial);
  if (!attempt.failure.has_value()) return true;
  // A sequence that no present node can hold, or that backs off, says nothing about others.
  walk.over = *attempt.failure == PlacementFailure::kNoDecodeNode;
  const bool no_room = *attempt.failure == PlacementFailure::kNoRoom;
  if (!no_room && *attempt.failure != PlacementFailure::kPrefillBusy) return false;
  if (no_room && needed > 0) walk.no_room_for = needed;
  // A sequence that waits for a prefill node needs no decode node's room kept.
  if (no_room && attempt.waited > kKeepRoomAfter && walk.kept < kKeptMax) {
    ++walk.kept;
    owner.KeepRoomFor(serial);
  }
  if (++walk.failed >= kFailedMax) walk.over = true;
  return false;
}

}  // namespace tandem::router
