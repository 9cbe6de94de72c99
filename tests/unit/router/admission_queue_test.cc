// Goal: waiting counts against priority, so each wait is bounded; a sequence without room blocks
// those that need as much and no others; long waiters get a node kept for them; one walk does a
// bounded amount of work however many wait.
#include "router/core/admission_queue.h"

#include <gtest/gtest.h>

#include <map>
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
  AdmissionQueue::Attempt TryToPlace(Serial serial) override {
    ++tried;
    if (needs.at(serial) > room) return {PlacementFailure::kNoRoom, waited};
    room -= needs.at(serial);
    return {};
  }
  void OnPlaced(Serial serial) override { placed.push_back(serial); }
  void KeepRoomFor(Serial serial) override { kept.push_back(serial); }

  std::map<Serial, int64_t> needs;
  int64_t room = 0;
  absl::Duration waited;
  int looked = 0, tried = 0;
  std::vector<Serial> placed, kept;
};

TEST(AdmissionQueue, BlocksOnlyThoseThatNeedAsMuch) {
  AdmissionQueue queue;
  Room room;
  room.room = 100;
  room.waited = absl::Seconds(30);
  const std::vector<int64_t> needs = {500, 500, 600, 40, 400, 50, 90};
  for (size_t i = 0; i < needs.size(); ++i) {
    room.needs[i + 1] = needs[i];
    queue.Insert({kNow, i + 1});
  }
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed, (std::vector<Serial>{4, 6}));
  EXPECT_EQ(room.tried, 5) << "those of 500 and 600 behind one of 500 are not tried";
  EXPECT_EQ(room.kept, (std::vector<Serial>{1, 5, 7}));
  EXPECT_EQ(queue.size(), 5u);
}

TEST(AdmissionQueue, AWalkIsBounded) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  AdmissionQueue queue;
  Room room;
  room.waited = absl::Seconds(30);
  for (Serial serial = 1; serial <= 5000; ++serial) {
    room.needs[serial] = 10000 - static_cast<int64_t>(serial) - random() % 3;
    queue.Insert({kNow, serial});
  }
  queue.PlaceAll(room);
  EXPECT_LE(room.tried, AdmissionQueue::kFailedMax);
  EXPECT_LE(room.looked, AdmissionQueue::kVisitedMax);
  EXPECT_LE(room.kept.size(), static_cast<size_t>(AdmissionQueue::kKeptMax));
  room.room = 1 << 30;
  queue.PlaceAll(room);
  EXPECT_EQ(room.placed.size(), static_cast<size_t>(AdmissionQueue::kTriedMax));
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

}  // namespace
}  // namespace tandem::router
