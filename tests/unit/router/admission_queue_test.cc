// Goal: waiting counts against priority, so each wait is bounded; a sequence without room blocks
// those that need as much and no others; long waiters get a node kept for them; one walk does a
// bounded amount of work however many wait.
#include "router/core/admission_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "common/telemetry/log.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

const absl::Time kNow = absl::UnixEpoch() + absl::Hours(1);

absl::Time Rank(absl::Duration age, int32_t priority) {
  return AdmissionQueue::RankOf(kNow - age, priority, absl::Seconds(1), absl::Seconds(15));
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

// Sequences that need `needs[serial]` tokens, of which `room` are left in all.
class Room : public AdmissionQueue::Owner {
 public:
  int64_t TokensNeeded(Serial serial) override {
    ++looked;
    return needs.at(serial);
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
  std::map<Serial, int64_t> needs, prompts;
  int64_t room = 0;
  bool tells_room = true;
  absl::Duration waited;
  int looked = 0, tried = 0;
  std::vector<Serial> placed, kept;
};

TEST(AdmissionQueue, BlocksOnlyThoseThatNeedAsMuch) {
  AdmissionQueue queue;
  queue.Join("", 1);
  Room room;
  room.room = 100;
  room.waited = absl::Seconds(30);
  const std::vector<int64_t> needs = {500, 500, 600, 40, 400, 50, 90};
  for (size_t i = 0; i < needs.size(); ++i) {
    room.needs[i + 1] = needs[i];
    queue.Insert("", {kNow, i + 1});
  }
  EXPECT_EQ(queue.inserted(), needs.size());
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, (std::vector<Serial>{4, 6}));
  EXPECT_EQ(room.tried, 4) << "500, 40, 50 and 90; the others need more than 100";
  EXPECT_EQ(room.kept, (std::vector<Serial>{1, 5, 7}));
  EXPECT_EQ(queue.size(), 5u);
}

// Fills a queue of one tenant in the order of `needs`; serials begin with 1.
void Fill(AdmissionQueue& queue, Room& room, const std::vector<int64_t>& needs) {
  queue.Join("", 1);
  for (const int64_t need : needs) {
    const Serial serial = room.needs.size() + 1;
    room.needs[serial] = need;
    queue.Insert("", {kNow, serial});
  }
}

// Walks until the sequence is placed; fails after `most` walks.
int WalkUntilPlaced(Serial serial, AdmissionQueue& queue, Room& room, int most) {
  for (int walks = 1; walks <= most; ++walks) {
    queue.PlaceAll(room);
    if (std::count(room.placed.begin(), room.placed.end(), serial) > 0) return walks;
  }
  ADD_FAILURE() << serial << " is not placed after " << most << " walks";
  return most;
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
  queue.Erase("", {kNow, 12});  // it has ended
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
    queue.Insert("", {kNow, serial});
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
    queue.Insert("", {kNow, serial});
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
    queue.Insert("", {kNow, serial, late});
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
    queue.Insert("", {kNow, serial, serial == 1});
  }
  room.room = 1390;
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed.size(), 139u);
  room.room = 1100;
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed.back(), 1u);
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
  void Wait(Serial serial) { queue.Insert(NameOf(serial), {kNow, serial}); }
  void Place(size_t count) {
    places = count;
    queue.PlaceAll(*this);
  }

  int64_t TokensNeeded(Serial) override { return 1; }
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

// The shares hold for tenants that ask for more than others, and when few run at a time.
TEST(AdmissionQueue, TenantsShareByWeight) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  Tenants tenants({{1, 1}, {2, 3}, {3, 0.5}});
  for (Serial number = 0; number < 999; ++number) {
    tenants.Wait(1000 + number);
    if (number % 2 == 0) tenants.Wait(2000 + number);
    if (number % 3 == 0) tenants.Wait(3000 + number);
  }
  for (int i = 0; i < 150; ++i) {
    tenants.Place(1 + random() % 5);
    constexpr double kOne = 280;  // the dearest sequence
    EXPECT_NEAR(tenants.got[2], tenants.got[1], kOne / 1 + kOne / 3);
    EXPECT_NEAR(tenants.got[3], tenants.got[1], kOne / 1 + kOne / 0.5);
  }
  EXPECT_GT(tenants.got[1], 1000);
  while (tenants.queue.size() > 0) tenants.Place(100);
  for (const char* tenant : {"t1", "t2", "t3"}) tenants.queue.Leave(tenant);
  EXPECT_EQ(tenants.queue.tenants(), 0u);
}

TEST(AdmissionQueue, WhoAsksForLittlePassesABacklog) {
  Tenants tenants({{1, 1}, {2, 1}});
  for (Serial number = 0; number < 500; ++number) tenants.Wait(1000 + number);
  tenants.Place(10);
  tenants.Wait(2001);
  tenants.Place(1);
  EXPECT_EQ(tenants.placed.back(), 2001u);
}

// It pays nothing later for what it got while no other tenant waited, and the other saves nothing
// up while it is away.
TEST(AdmissionQueue, WhoComesBackBeginsWhereTheOthersAre) {
  Tenants tenants({{1, 1}, {2, 1}});
  for (Serial number = 0; number < 900; ++number) tenants.Wait(1000 + number);
  tenants.Place(200);
  for (Serial number = 0; number < 900; ++number) tenants.Wait(2000 + number);
  tenants.placed.clear();
  for (int i = 0; i < 100; ++i) tenants.Place(1);
  const auto of_first = std::count_if(tenants.placed.begin(), tenants.placed.end(),
                                      [](Serial serial) { return serial < 2000; });
  EXPECT_GE(of_first, 47);
  EXPECT_LE(of_first, 53);
}

// Eight sequences without room end a walk's part. A tenant with many such leaves turns to others.
TEST(AdmissionQueue, ATenantWithoutRoomLeavesTurnsToOthers) {
  AdmissionQueue queue;
  Room room;
  queue.Join("large", 1);
  queue.Join("small", 1);
  room.room = 50;
  room.tells_room = false;
  for (Serial serial = 1; serial <= 20; ++serial) {
    room.needs[serial] = 1000 - static_cast<int64_t>(serial);
    queue.Insert("large", {kNow, serial});
  }
  for (Serial serial = 101; serial <= 103; ++serial) {
    room.needs[serial] = 10;
    queue.Insert("small", {kNow, serial});
  }
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, (std::vector<Serial>{101, 102, 103}));
  EXPECT_EQ(room.tried, 2 * AdmissionQueue::kFailedMax + 3);
}

class QueueOfCoreTest : public ::testing::Test {
 protected:
  QueueOfCoreTest() { SetLogLevel(LogLevel::kError); }
  void Free(uint64_t key, int64_t blocks) {
    v1::NodeMessage load;
    load.mutable_load()->set_blocks_total(100);
    load.mutable_load()->set_blocks_free(blocks);
    h_.SayMessage(key, load);
  }
  CoreHarness h_;
};

// A large request waits for room. Small ones go on where they do not delay it, for as long as it
// waits; once its node has drained it is placed before all younger ones.
TEST_F(QueueOfCoreTest, OneThatFindsNoRoomHoldsUpNobodyElsewhere) {
  h_.JoinDecode(1, "d0");
  h_.JoinDecode(2, "d1");
  Free(1, 10);
  Free(2, 8);
  ASSERT_OK(h_.Submit("large", 300));
  h_.Advance(absl::Seconds(2));
  for (int i = 0; i < 30; ++i) {
    ASSERT_OK(h_.Submit(absl::StrCat("small", i), 10));
    EXPECT_EQ(h_.NextRun(2).leg().request_id(), absl::StrCat("small", i));
    EXPECT_TRUE(h_.Quiet(1)) << "its room is kept";
    h_.Finish(absl::StrCat("small", i), request::FinishReason::kAborted);
    h_.Next(2);
    Free(1, 10 + i);
    Free(2, 40);  // more than d0 has; the node that is kept stays the same
    h_.Advance(absl::Seconds(1));
  }
  Free(1, 90);
  EXPECT_EQ(h_.NextRun(1).leg().request_id(), "large");
  ASSERT_OK(h_.Submit("after", 10));
  EXPECT_EQ(h_.NextRun(2).leg().request_id(), "after");
}

// A longer prompt needs less room than a shorter one, if its beginning lies on the node.
TEST_F(QueueOfCoreTest, WhatANodeHoldsNeedsNoRoom) {
  h_.JoinDecode(1, "d0");
  v1::NodeEvent stored;
  stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(HashesOf(Tokens(320))));
  h_.Say(1, {stored});
  Free(1, 20);
  RequestInput other = CoreHarness::Input("other", 100, 10);
  other.prompt = Tokens(100, 500);
  ASSERT_OK(h_.Submit(std::move(other)));
  EXPECT_TRUE(h_.Quiet(1)) << "26 blocks do not fit in 20";
  ASSERT_OK(h_.Submit("held", 350));
  EXPECT_EQ(h_.NextRun(1).leg().request_id(), "held");
}

// It comes to lie there while the sequence waits.
TEST_F(QueueOfCoreTest, WhatANodeComesToHoldNeedsNoRoom) {
  h_.JoinDecode(1, "d0");
  Free(1, 20);
  ASSERT_OK(h_.Submit("long", 350));
  EXPECT_TRUE(h_.Quiet(1));
  v1::NodeEvent stored;
  stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(HashesOf(Tokens(320))));
  h_.Say(1, {stored});
  h_.Advance(absl::Milliseconds(10));
  EXPECT_EQ(h_.NextRun(1).leg().request_id(), "long");
}

// One tenant's backlog does not delay another's requests. What was computed is charged, an answer's
// tokens included; a tenant of twice the weight gets twice as much.
TEST_F(QueueOfCoreTest, TenantsTakeTurns) {
  h_.JoinDecode(1, "d0");
  const auto submit = [&](const std::string& tenant, int number, double weight) {
    RequestInput input = CoreHarness::Input(absl::StrCat(tenant, number), 150, 10);
    input.share = {tenant, weight};
    ASSERT_OK(h_.Submit(std::move(input)));
  };
  Free(1, 0);
  for (int i = 0; i < 12; ++i) submit("a", i, 1);
  for (int i = 0; i < 12; ++i) submit("b", i, 2);
  std::string order;
  for (int i = 0; i < 12; ++i) {
    Free(1, 40);
    const std::string id = h_.NextRun(1).leg().request_id();
    order += id[0];
    ASSERT_TRUE(h_.Quiet(1)) << "there is room for one";
    Free(1, 0);
    h_.Finish(id, request::FinishReason::kAborted);
    h_.Next(1);
  }
  EXPECT_EQ(order, "abbabbabbabb");
}

}  // namespace
}  // namespace tandem::router
