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
  const auto waits = [&] { return !line.aside && !line.positions.empty(); };
  if (waits()) {
    turns_.erase({line.counter, tenant});
    round_turns_.erase({line.counter, tenant});
  }
  size_ -= line.positions.size();
  change(line);
  size_ += line.positions.size();
  if (!waits()) return;
  turns_.insert({line.counter, tenant});
  if (line.done_round != round_) round_turns_.insert({line.counter, tenant});
}

void AdmissionQueue::Join(const std::string& tenant, double weight) {
  if (lines_.try_emplace(tenant).second) lines_.at(tenant).counter = Recall(tenant).value_or(0);
  Alter(tenant, [&](Line& line) {
    ++line.requests;
    line.weight = weight;
  });
}

void AdmissionQueue::Leave(const std::string& tenant) {
  Line& line = lines_.at(tenant);
  if (--line.requests > 0) return;
  if (line.counter > floor_) Remember(tenant, line.counter);
  lines_.erase(tenant);
  // The others have come to where these are. Without requests no tenant lacks what these got.
  while (!owing_least_.empty() && (lines_.empty() || owing_least_.begin()->first <= floor_))
    Recall(std::string(owing_least_.begin()->second));
}

void AdmissionQueue::Remember(const std::string& tenant, double counter) {
  owing_.emplace(tenant, counter);
  owing_least_.insert({counter, tenant});
  if (owing_.size() > kOwingMax) Recall(std::string(owing_least_.begin()->second));
}

std::optional<double> AdmissionQueue::Recall(const std::string& tenant) {
  const auto found = owing_.find(tenant);
  if (found == owing_.end()) return std::nullopt;
  const double counter = found->second;
  owing_least_.erase({counter, tenant});
  owing_.erase(found);
  return counter;
}

void AdmissionQueue::Charge(const std::string& tenant, double us) {
  if (us <= 0) return;
  Line& line = lines_.at(tenant);
  const double counter = line.counter + us / line.weight;
  // Mostly nothing of the tenant waits, so it has no turn to move.
  if (line.positions.empty())
    line.counter = counter;
  else
    Alter(tenant, [counter](Line& waiting) { waiting.counter = counter; });
}

void AdmissionQueue::Insert(const std::string& tenant, const Position& position) {
  ++inserted_;
  Alter(tenant, [&](Line& line) {
    if (line.positions.empty()) line.counter = std::max(line.counter, floor_);
    line.positions.insert(position);
  });
}

void AdmissionQueue::Erase(const std::string& tenant, const Position& position) {
  Alter(tenant, [&](Line& line) { line.positions.erase(position); });
  std::erase(kept_before_, position.serial);
}

bool AdmissionQueue::Contains(const std::string& tenant, const Position& position) const {
  const auto line = lines_.find(tenant);
  return line != lines_.end() && line->second.positions.contains(position);
}

void AdmissionQueue::VisitBefore(const std::string& tenant, const Position& position,
                                 absl::FunctionRef<bool(Serial)> visit) const {
  for (const Position& other : lines_.at(tenant).positions)
    if (!(other < position) || !visit(other.serial)) return;
}

void AdmissionQueue::VisitBackwards(const std::string& tenant,
                                    absl::FunctionRef<bool(Serial)> visit) const {
  const absl::btree_set<Position>& positions = lines_.at(tenant).positions;
  for (auto position = positions.rbegin(); position != positions.rend(); ++position)
    if (!visit(position->serial)) return;
}

const std::string* AdmissionQueue::LargestTenant() const {
  const auto largest =
      std::max_element(lines_.begin(), lines_.end(), [](const auto& a, const auto& b) {
        return a.second.SizeByWeight() < b.second.SizeByWeight();
      });
  return size_ == 0 ? nullptr : &largest->first;
}

bool AdmissionQueue::HasMore(const std::string& a, const std::string& b) const {
  return lines_.at(a).SizeByWeight() > lines_.at(b).SizeByWeight();
}

std::optional<AdmissionQueue::Position> AdmissionQueue::LateTurn(const Line& line, Owner& owner,
                                                                 const Walk& walk) const {
  // In second parts of walks each turn shortens the round.
  if (walk.resumes || line.passed == 0 || line.late_walk == walk_) return std::nullopt;
  const auto due = [&](auto late) {
    return late != line.positions.end() &&
           line.passed / kLatePart >= owner.PromptTokens(late->serial);
  };
  if (line.late_tried.has_value()) {
    const auto next = line.positions.upper_bound(*line.late_tried);
    if (due(next)) return *next;
  }
  const auto first =
      line.positions.lower_bound({.rank = absl::InfinitePast(), .serial = 0, .late = true});
  return due(first) ? std::optional(*first) : std::nullopt;
}

void AdmissionQueue::CountPassed(const Position& placed, int64_t tokens, Line& line) {
  if (placed.late) {
    line.passed = 0;
    line.late_tried.reset();
  } else if (line.positions.rbegin()->late) {
    line.passed += tokens;
  }
}

std::optional<AdmissionQueue::Position> AdmissionQueue::NextOf(const Line& line, Owner& owner,
                                                               const Walk& walk) const {
  if (const auto late = LateTurn(line, owner, walk); late.has_value()) return late;
  auto next = line.positions.begin();
  if (line.walk == walk_) next = line.positions.upper_bound(line.tried_last);
  const bool further = walk.resumes && line.round == round_ &&
                       (line.walk != walk_ || line.tried_last < line.resume_after);
  if (further) next = line.positions.upper_bound(line.resume_after);
  return next == line.positions.end() ? std::nullopt : std::optional(*next);
}

void AdmissionQueue::NoteTried(const std::string& tenant, const Position& position, Owner& owner,
                               const Walk& walk) {
  Line& line = lines_.at(tenant);
  if (LateTurn(line, owner, walk).has_value()) {
    line.late_walk = walk_;
    line.late_tried = position;
    return;
  }
  line.tried_last = position;
  line.walk = walk_;
  // It is aside, so it is in neither set of turns.
  if (!(position < *line.positions.rbegin())) line.done_round = round_;
  if (!walk.resumes) return;
  line.resume_after = position;
  line.round = round_;
}

void AdmissionQueue::SetAside(const std::string& tenant, bool aside) {
  if (lines_.contains(tenant)) Alter(tenant, [&](Line& line) { line.aside = aside; });
}

void AdmissionQueue::PlaceAll(Owner& owner) {
  ++walk_;
  Walk walk;
  PartEnd end = WalkPart(owner, walk);
  if (end == PartEnd::kNothing) return;
  // New room for many is first offered to those that come first.
  if (end == PartEnd::kBound && walk.tried < kTriedMax) {
    walk.visited = walk.failed = walk.too_late = walk.vain = 0;
    walk.over = false;
    walk.resumes = true;
    for (const Serial serial : std::vector<Serial>(kept_before_)) KeepRoom(serial, owner, walk);
    end = WalkPart(owner, walk);
  }
  if (end == PartEnd::kBound) return;
  ++round_;
  if (round_turns_.size() < turns_.size()) round_turns_ = turns_;
  kept_before_.clear();
}

// Takes the tenants in turns. A tenant's turn ends with the first of its sequences that is not
// placed, and its next turn comes after all others had theirs. So one tenant's sequences without
// room do not use up the walk.
AdmissionQueue::PartEnd AdmissionQueue::WalkPart(Owner& owner, Walk& walk) {
  const absl::btree_set<Turn>& turns = walk.resumes ? round_turns_ : turns_;
  std::optional<PartEnd> end;
  std::vector<std::string> to_go_on, ended;
  while (!end.has_value()) {
    if (turns.empty()) {
      for (const std::string& tenant : to_go_on) SetAside(tenant, false);
      to_go_on.clear();
    }
    if (turns.empty()) {
      end = PartEnd::kAll;
      break;
    }
    if (walk.visited++ >= kVisitedMax || walk.tried >= kTriedMax || walk.failed >= kFailedMax ||
        walk.too_late >= kTooLateMax || walk.vain >= kVainMax) {
      end = PartEnd::kBound;
      break;
    }
    const std::string tenant = turns.begin()->second;
    const std::optional<Position> position = NextOf(lines_.at(tenant), owner, walk);
    if (position.has_value() && Try(position->serial, owner, walk)) {
      floor_ = std::max(floor_, turns.begin()->first);
      CountPassed(*position, owner.PromptTokens(position->serial), lines_.at(tenant));
      Erase(tenant, *position);
      owner.OnPlaced(position->serial);
      continue;
    }
    SetAside(tenant, true);
    (position.has_value() ? to_go_on : ended).push_back(tenant);
    if (position.has_value())
      NoteTried(tenant, *position, owner, walk);
    else if (walk.resumes)
      lines_.at(tenant).done_round = round_;
    if (walk.over) end = PartEnd::kNothing;
  }
  for (const std::string& tenant : to_go_on) SetAside(tenant, false);
  for (const std::string& tenant : ended) SetAside(tenant, false);
  return *end;
}

bool AdmissionQueue::Try(Serial serial, Owner& owner, Walk& walk) {
  if (owner.TokensNeeded(serial) > walk.room) {
    KeepRoom(serial, owner, walk);
    return false;
  }
  ++walk.tried;
  const Attempt attempt = owner.TryToPlace(serial);
  if (!attempt.failure.has_value()) return true;
  ++walk.vain;
  // A sequence that no present node can hold, or that backs off, says nothing about others.
  walk.over = *attempt.failure == PlacementFailure::kNoDecodeNode;
  const bool no_room = *attempt.failure == PlacementFailure::kNoRoom ||
                       *attempt.failure == PlacementFailure::kStepsTooLong;
  // A sequence that waits for a prefill node needs no decode node's room kept.
  if (no_room || *attempt.failure == PlacementFailure::kPrefillBusy) ++walk.failed;
  if (*attempt.failure == PlacementFailure::kTooLate) ++walk.too_late;
  if (no_room) {
    walk.room = std::min(walk.room, attempt.room);
    KeepRoom(serial, owner, walk);
  }
  return false;
}

void AdmissionQueue::KeepRoom(Serial serial, Owner& owner, Walk& walk) {
  const auto contains = [serial](const std::vector<Serial>& kept) {
    return std::find(kept.begin(), kept.end(), serial) != kept.end();
  };
  if (walk.kept.size() >= kKeptMax || owner.Waited(serial) <= kKeepRoomAfter || contains(walk.kept))
    return;
  const int64_t needed = owner.TokensToKeep(serial);
  if (needed >= walk.kept_least) return;
  walk.kept.push_back(serial);
  if (needed > 0) walk.kept_least = needed;
  if (walk.resumes && kept_before_.size() < kKeptMax && !contains(kept_before_))
    kept_before_.push_back(serial);
  owner.KeepRoomFor(serial);
}

}  // namespace tandem::router
