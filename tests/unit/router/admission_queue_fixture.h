// Owners of an admission queue, in which tests say what needs how much room and what it costs.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/core/admission_queue.h"

namespace tandem::router {

inline const absl::Time kArrived = absl::UnixEpoch() + absl::Hours(1);

// Sequences that need `needs[serial]` tokens, of which `room` are left in all.
class Room : public AdmissionQueue::Owner {
 public:
  int64_t TokensNeeded(Serial serial) override {
    ++looked;
    return needs.at(serial);
  }
  int64_t TokensToKeep(Serial serial) override {
    const auto own = stores.find(serial);
    return own == stores.end() ? needs.at(serial) : own->second;
  }
  int64_t PromptTokens(Serial serial) override {
    const auto own = prompts.find(serial);
    return own == prompts.end() ? 10 : own->second;
  }
  AdmissionQueue::Attempt TryToPlace(Serial serial) override {
    ++tried;
    if (needs.at(serial) > room) return {PlacementFailure::kNoRoom, tells_room ? room : kUnknown};
    room -= needs.at(serial);
    return {};
  }
  void OnPlaced(Serial serial) override { placed.push_back(serial); }
  absl::Duration Waited(Serial) override { return waited; }
  void KeepRoomFor(Serial serial) override { kept.push_back(serial); }

  static constexpr int64_t kUnknown = AdmissionQueue::kAnyRoom;
  std::map<Serial, int64_t> needs, stores, prompts;  // stores: what is not `needs`
  int64_t room = 0;
  bool tells_room = true;
  absl::Duration waited;
  int looked = 0, tried = 0;
  std::vector<Serial> placed, kept;
};

// Fills a queue of one tenant in the order of `needs`; serials begin with 1.
inline void Fill(AdmissionQueue& queue, Room& room, const std::vector<int64_t>& needs) {
  queue.Join("", 1);
  for (const int64_t need : needs) {
    const Serial serial = room.needs.size() + 1;
    room.needs[serial] = need;
    queue.Insert("", {kArrived, serial});
  }
}

// Walks until the sequence is placed; fails after `most` walks.
inline int WalkUntilPlaced(Serial serial, AdmissionQueue& queue, Room& room, int most) {
  for (int walks = 1; walks <= most; ++walks) {
    queue.PlaceAll(room);
    if (std::count(room.placed.begin(), room.placed.end(), serial) > 0) return walks;
  }
  ADD_FAILURE() << serial << " is not placed after " << most << " walks";
  return most;
}

// Sequences of tenants, each of which costs its tenant tokens when it is placed. Serials are
// 1000 * tenant + number.
class Tenants : public AdmissionQueue::Owner {
 public:
  explicit Tenants(std::map<Serial, double> weights) : weights_(std::move(weights)) {
    for (const auto& [tenant, weight] : weights_) {
      queue.Join(absl::StrCat("t", tenant), weight);
    }
  }

  static std::string NameOf(Serial serial) { return absl::StrCat("t", serial / 1000); }
  static int64_t CostOf(Serial serial) { return 100 + static_cast<int64_t>(serial % 7) * 30; }
  void Wait(Serial serial) { queue.Insert(NameOf(serial), {kArrived, serial}); }
  void Place(size_t count) {
    places = count;
    queue.PlaceAll(*this);
  }

  int64_t TokensNeeded(Serial) override { return 1; }
  int64_t TokensToKeep(Serial) override { return 1; }
  int64_t PromptTokens(Serial serial) override { return CostOf(serial); }
  AdmissionQueue::Attempt TryToPlace(Serial) override {
    if (places > 0) return {};
    return {PlacementFailure::kNoRoom};
  }
  void OnPlaced(Serial serial) override {
    --places;
    placed.push_back(serial);
    got[serial / 1000] += static_cast<double>(CostOf(serial)) / weights_.at(serial / 1000);
    queue.Charge(NameOf(serial), static_cast<double>(CostOf(serial)));
  }
  absl::Duration Waited(Serial) override { return absl::ZeroDuration(); }
  void KeepRoomFor(Serial) override {}

  AdmissionQueue queue;
  std::vector<Serial> placed;
  std::map<Serial, double> got;  // work over weight
  size_t places = 0;

 private:
  const std::map<Serial, double> weights_;
};

}  // namespace tandem::router
