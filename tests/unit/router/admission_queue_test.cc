// Goal: waiting counts against priority, so each wait is bounded; a sequence without room blocks
// those that need as much and no others; long waiters get a node kept for them; one walk does a
// bounded amount of work however many wait.
#include "router/core/admission_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <random>

#include "tests/unit/router/admission_queue_fixture.h"

namespace tandem::router {
namespace {

absl::Time Rank(absl::Duration age, int32_t priority) {
  return AdmissionQueue::RankOf(kArrived - age, priority, absl::Seconds(1), absl::Seconds(15));
}

TEST(AdmissionQueue, ALevelIsWorthItsTime) {
  EXPECT_LT(Rank(absl::ZeroDuration(), 0), Rank(absl::Milliseconds(900), 1));
  EXPECT_GT(Rank(absl::ZeroDuration(), 0), Rank(absl::Milliseconds(1100), 1));
  EXPECT_LT(Rank(absl::ZeroDuration(), -1), Rank(absl::ZeroDuration(), 0));
}

TEST(AdmissionQueue, NoPriorityPassesWhoHasWaitedForTwiceTheMost) {
  constexpr int32_t kLowest = std::numeric_limits<int32_t>::max();
  constexpr int32_t kHighest = std::numeric_limits<int32_t>::min();
  EXPECT_LT(Rank(absl::ZeroDuration(), kHighest), Rank(absl::Seconds(29), kLowest));
  EXPECT_LT(Rank(absl::Seconds(31), kLowest), Rank(absl::ZeroDuration(), kHighest));
}

TEST(AdmissionQueue, BlocksOnlyThoseThatNeedAsMuch) {
  AdmissionQueue queue;
  queue.Join("", 1);
  Room room;
  room.room = 100;
  room.waited = absl::Seconds(30);
  const std::vector<int64_t> needs = {500, 500, 600, 40, 400, 50, 90};
  for (size_t i = 0; i < needs.size(); ++i) {
    room.needs[i + 1] = needs[i];
    queue.Insert("", {kArrived, i + 1});
  }
  EXPECT_EQ(queue.inserted(), needs.size());
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, (std::vector<Serial>{4, 6}));
  EXPECT_EQ(room.tried, 4) << "500, 40, 50 and 90; the others need more than 100";
  EXPECT_EQ(room.kept, (std::vector<Serial>{1, 5, 7}));
  EXPECT_EQ(queue.size(), 5u);
}

TEST(AdmissionQueue, EightOfFallingSizeHoldUpNoNinth) {
  AdmissionQueue queue;
  Room room;
  room.room = 100;
  Fill(queue, room, {900, 800, 700, 600, 500, 400, 300, 200, 100});
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, std::vector<Serial>{9});
  EXPECT_EQ(room.tried, 2);
}

// Where an attempt does not tell the room that there is, walks go on where the last one stopped.
TEST(AdmissionQueue, WalksReachAllThoughTheyDoNotKnowTheRoom) {
  AdmissionQueue queue;
  Room room;
  room.room = 100;
  room.tells_room = false;
  std::vector<int64_t> needs;
  for (int64_t i = 0; i < 200; ++i) needs.push_back(1000 - i);
  needs.push_back(100);
  Fill(queue, room, needs);
  const int walks = WalkUntilPlaced(201, queue, room, 30);
  EXPECT_EQ(room.placed, std::vector<Serial>{201});
  EXPECT_LE(room.tried, 2 * AdmissionQueue::kFailedMax * walks + 1);
  // The next round begins again: new room goes to the first.
  room.placed.clear();
  room.room = 1000;
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, std::vector<Serial>{1});
}

// New room goes to those that come first, though a round has passed them.
TEST(AdmissionQueue, EachWalkOffersRoomToTheFirst) {
  AdmissionQueue queue;
  Room room;
  room.tells_room = false;
  Fill(queue, room, std::vector<int64_t>(100, 10));
  queue.PlaceAll(room);
  queue.PlaceAll(room);
  EXPECT_LT(room.tried, 100) << "the round goes on";
  room.room = 20;
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, (std::vector<Serial>{1, 2}));
}

// A walk that goes on behind sequences with kept nodes keeps these nodes.
TEST(AdmissionQueue, RoomIsKeptForThoseThatAWalkSkips) {
  AdmissionQueue queue;
  Room room;
  room.tells_room = false;
  room.waited = absl::Seconds(30);
  std::vector<int64_t> needs;
  for (int64_t i = 0; i < 100; ++i) needs.push_back(1000 - i);
  Fill(queue, room, needs);
  std::vector<Serial> first(16);
  std::iota(first.begin(), first.end(), 1);
  for (int walk = 0; walk < 3; ++walk) {
    room.kept.clear();
    queue.PlaceAll(room);
    EXPECT_EQ(room.kept, first) << walk;
  }
  queue.Erase("", {kArrived, 12});  // it has ended
  room.kept.clear();
  queue.PlaceAll(room);
  EXPECT_EQ(std::count(room.kept.begin(), room.kept.end(), 12), 0);
  EXPECT_EQ(room.kept.size(), 16u);
}

TEST(AdmissionQueue, ElevenHundredWithoutRoomHoldUpNoOther) {
  AdmissionQueue queue;
  Room room;
  room.room = 100;
  std::vector<int64_t> needs(1100, 500);
  needs.push_back(100);
  Fill(queue, room, needs);
  WalkUntilPlaced(1101, queue, room, 3);
  EXPECT_EQ(room.placed, std::vector<Serial>{1101});
}

// More tenants wait than a walk looks at, each with one sequence without room. Walks reach the
// tenants behind them, and begin again when all had their turn.
TEST(AdmissionQueue, FifteenHundredTenantsWithoutRoomHoldUpNoOther) {
  for (const bool tells_room : {true, false}) {
    SCOPED_TRACE(tells_room);
    AdmissionQueue queue;
    Room room;
    room.room = 50;
    room.tells_room = tells_room;
    const auto wait = [&](const std::string& tenant, int64_t need) {
      const Serial serial = room.needs.size() + 1;
      room.needs[serial] = need;
      queue.Join(tenant, 1);
      queue.Insert(tenant, {kArrived, serial});
      return serial;
    };
    for (int i = 0; i < 1500; ++i) wait(absl::StrCat("t", 1000 + i), 500);
    // With few failures in a walk, its second part reaches 8 tenants.
    const int most = tells_room ? 3 : 1500 / AdmissionQueue::kFailedMax + 1;
    WalkUntilPlaced(wait("z", 40), queue, room, most);
    // The next round reaches a later one, though it comes behind all others again.
    room.room = 50;
    WalkUntilPlaced(wait("zz", 40), queue, room, 2 * most);
    EXPECT_EQ(room.placed.size(), 2u);
  }
}

// The same with several sequences of each tenant, of which late ones are to be tried first. A round
// tries each of them, and each turn in second parts of walks shortens it.
TEST(AdmissionQueue, ARoundReachesAllSequencesOfManyTenants) {
  AdmissionQueue queue;
  Room room;
  room.room = 50;
  constexpr int kTenants = 1100, kEach = 3;
  const auto name = [](int tenant) { return absl::StrCat("t", 1000 + tenant); };
  const auto wait = [&](int tenant, int64_t need, bool late) {
    const Serial serial = room.needs.size() + 1;
    room.needs[serial] = need;
    room.prompts[serial] = late ? 1 : 1000;
    queue.Insert(name(tenant), {kArrived, serial, late});
    return serial;
  };
  Serial last = 0;
  for (int tenant = 0; tenant < kTenants; ++tenant) {
    queue.Join(name(tenant), 1);
    wait(tenant, 0, /*late=*/false);  // passes the late ones
    for (int i = 0; i < kEach; ++i) last = wait(tenant, 500, /*late=*/true);
  }
  // In these walks the late ones begin to have their turns.
  for (int walk = 0; walk < 20 && room.placed.size() < kTenants; ++walk) queue.PlaceAll(room);
  ASSERT_EQ(room.placed.size(), static_cast<size_t>(kTenants));
  room.needs[last] = 40;
  // The rest of this round, and the next one.
  constexpr int kRoundMax = kTenants * kEach / AdmissionQueue::kVisitedMax + 1;
  WalkUntilPlaced(last, queue, room, 2 * kRoundMax);
}

// Sequences that other nodes must be asked for, because one node holds their prompt already, are
// tried though no node has room. They need as much as each other, so one node is kept for all.
TEST(AdmissionQueue, OneNodeIsKeptForThoseThatNeedAsMuchOfIt) {
  AdmissionQueue queue;
  Room room;
  room.room = -1;
  room.waited = absl::Seconds(30);
  queue.Join("", 1);
  for (Serial serial = 1; serial <= 20; ++serial) {
    room.needs[serial] = 0;
    room.stores[serial] = 300;
    queue.Insert("", {kArrived, serial});
  }
  for (int walk = 0; walk < 3; ++walk) {
    room.kept.clear();
    queue.PlaceAll(room);
    EXPECT_EQ(room.kept, std::vector<Serial>{1}) << walk;
  }
}

// A node that is kept for one sequence may be among those that another avoids.
TEST(AdmissionQueue, EachSequenceThatAvoidsNodesHasOneKept) {
  AdmissionQueue queue;
  Room room;
  room.room = -1;
  room.waited = absl::Seconds(30);
  Fill(queue, room, {0, 300, 0, 300, 200});
  queue.PlaceAll(room);
  EXPECT_EQ(room.kept, (std::vector<Serial>{1, 2, 3, 5}));
}

// A request may fail while a walk runs. No node is kept for its sequences afterwards.
TEST(AdmissionQueue, NoNodeIsKeptForOneThatHasLeftDuringTheWalk) {
  class Fails final : public Room {
   public:
    explicit Fails(AdmissionQueue& queue) : queue_(queue) {}
    void OnPlaced(Serial serial) override {
      Room::OnPlaced(serial);
      if (kept.empty()) return;
      fails = kept.back();
      queue_.Erase("", {kArrived, fails});
      needs.erase(fails);  // at() throws from now on
    }
    Serial fails = 0;

   private:
    AdmissionQueue& queue_;
  };
  AdmissionQueue queue;
  Fails room(queue);
  room.tells_room = false;
  room.room = 10;
  room.waited = absl::Seconds(30);
  std::vector<int64_t> needs;
  for (int64_t i = 0; i < 14; ++i) needs.push_back(1000 - i);
  needs.push_back(10);
  for (int64_t i = 0; i < 20; ++i) needs.push_back(900 - i);
  Fill(queue, room, needs);
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, std::vector<Serial>{15});
  EXPECT_EQ(room.fails, 14u) << "the second part kept a node for it";
  room.kept.clear();
  queue.PlaceAll(room);
  EXPECT_EQ(room.kept.size(), static_cast<size_t>(AdmissionQueue::kKeptMax));
}

TEST(AdmissionQueue, BusyPrefillNodesKeepNoRoom) {
  class Busy final : public Room {
   public:
    AdmissionQueue::Attempt TryToPlace(Serial serial) override {
      if (needs.at(serial) <= 50) return Room::TryToPlace(serial);  // a decode node computes it
      ++tried;
      return {PlacementFailure::kPrefillBusy};
    }
  } busy;
  busy.room = 1 << 20;
  AdmissionQueue queue;
  queue.Join("", 1);
  for (Serial serial = 1; serial <= 100; ++serial) {
    busy.needs[serial] = serial == 4 ? 50 : 500;
    queue.Insert("", {kArrived, serial});
  }
  busy.waited = absl::Seconds(30);
  queue.PlaceAll(busy);
  EXPECT_EQ(busy.placed, std::vector<Serial>{4}) << "it passes those that wait";
  EXPECT_EQ(busy.tried, 2 * AdmissionQueue::kFailedMax + 1);
  EXPECT_TRUE(busy.kept.empty());
}

TEST(AdmissionQueue, AWalkIsBounded) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  AdmissionQueue queue;
  queue.Join("", 1);
  Room room;
  room.waited = absl::Seconds(30);
  for (Serial serial = 1; serial <= 5000; ++serial) {
    room.needs[serial] = 10000 - static_cast<int64_t>(serial) - random() % 3;
    queue.Insert("", {kArrived, serial});
  }
  room.tells_room = false;  // every one is tried
  queue.PlaceAll(room);
  EXPECT_EQ(room.tried, 2 * AdmissionQueue::kFailedMax);
  EXPECT_LE(room.kept.size(), static_cast<size_t>(AdmissionQueue::kKeptMax));
  room.tells_room = true;
  room.looked = room.tried = 0;
  queue.PlaceAll(room);
  EXPECT_EQ(room.tried, 1);
  // Each is looked at once, and once more for a room to be kept.
  EXPECT_LE(room.looked, 4 * AdmissionQueue::kVisitedMax + AdmissionQueue::kKeptMax);
  room.room = 1 << 30;
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed.size(), static_cast<size_t>(AdmissionQueue::kTriedMax));
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed.size(), 2u * AdmissionQueue::kTriedMax) << "another walk places more";
}

// More come in time than there is room for, without an end. A late one has its turn when the
// prompts that passed it have kLatePart times its tokens, however many they are, in the order in
// which they came.
TEST(AdmissionQueue, LateOnesGetAFixedPartOfTheTokens) {
  AdmissionQueue queue;
  Room room;
  queue.Join("", 1);
  const auto wait = [&](Serial serial, int64_t tokens, bool late) {
    room.needs[serial] = 10;
    room.prompts[serial] = tokens;
    queue.Insert("", {kArrived, serial, late});
  };
  for (Serial serial = 1; serial <= 20; ++serial)
    wait(serial, 10 * static_cast<int64_t>(serial), true);
  Serial next = 100;
  const auto wait_in_time = [&] {
    wait(next, next % 2 == 0 ? 5 : 40, false);
    ++next;
  };
  wait_in_time();
  for (int i = 0; i < 500; ++i) {
    wait_in_time();
    room.room = 10;
    queue.PlaceAll(room);
  }
  std::vector<Serial> late;
  int64_t passed = 0, last = 0;
  for (const Serial serial : room.placed) {
    if (serial >= 100) {
      passed += last = room.prompts.at(serial);
      continue;
    }
    late.push_back(serial);
    const int64_t part = AdmissionQueue::kLatePart * room.prompts.at(serial);
    EXPECT_GE(passed, part) << serial;
    EXPECT_LT(passed - last, part) << serial << " could have had an earlier turn";
    passed = 0;
  }
  EXPECT_THAT(late, ::testing::ElementsAre(1, 2, 3, 4, 5, 6, 7));
}

// A late one's turn that finds no room holds up nobody.
TEST(AdmissionQueue, ALateOnesTurnHoldsUpNobody) {
  AdmissionQueue queue;
  Room room;
  queue.Join("", 1);
  for (Serial serial = 1; serial <= 140; ++serial) {
    room.needs[serial] = serial == 1 ? 1100 : 10;  // prompts of 10
    queue.Insert("", {kArrived, serial, serial == 1});
  }
  room.room = 1390;
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed.size(), 139u);
  room.room = 1100;
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed.back(), 1u);
}

// Nor does one whose turn never finds room keep the other late ones from theirs.
TEST(AdmissionQueue, LateOnesTakeTurnsWhileTheFirstFindsNoRoom) {
  AdmissionQueue queue;
  Room room;
  queue.Join("", 1);
  Serial next = 100;
  const auto wait = [&](Serial serial, int64_t need, bool late) {
    room.needs[serial] = need;
    queue.Insert("", {kArrived, serial, late});
  };
  wait(1, 1100, true);
  for (Serial serial = 2; serial <= 4; ++serial) wait(serial, 10, true);
  wait(next++, 10, false);
  for (int i = 0; i < 5 * AdmissionQueue::kLatePart; ++i) {
    wait(next++, 10, false);
    room.room = 10;
    queue.PlaceAll(room);
  }
  for (Serial serial = 2; serial <= 4; ++serial)
    EXPECT_THAT(room.placed, ::testing::Contains(serial));
}

// Each of them weighs all nodes.
TEST(AdmissionQueue, PlacementsThatAreAllTooLateAreBounded) {
  class Overloaded final : public Room {
   public:
    AdmissionQueue::Attempt TryToPlace(Serial) override {
      ++tried;
      return {PlacementFailure::kTooLate};
    }
  } overloaded;
  AdmissionQueue queue;
  Fill(queue, overloaded, std::vector<int64_t>(1000, 10));
  queue.PlaceAll(overloaded);
  EXPECT_EQ(overloaded.tried, 2 * AdmissionQueue::kTooLateMax);
}

}  // namespace
}  // namespace tandem::router
