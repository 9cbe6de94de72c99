// Goal: sending blocks takes at most its share of a step's time, as measured; a node that would run
// out of blocks sends faster; the number is always from 1 to the most.
#include "common/node/moving_pace.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace tandem::node {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;
// Nothing runs short.
constexpr MovingPace::Room kRoomy = {
    .unsent = 16, .available = 1000, .sequences = 2, .block_tokens = 32};

MovingPace Measured(absl::Duration of_a_block) {
  MovingPace pace;
  for (int i = 0; i < 20; ++i) pace.Observe(8 * kBlockBytes, 8 * of_a_block);
  return pace;
}

TEST(MovingPace, TakesItsShareOfAStep) {
  const MovingPace pace = Measured(absl::Microseconds(100));
  // 3 % of 10 ms are three blocks of 100 us.
  EXPECT_EQ(pace.BlocksBeforeStep(10'100, kBlockBytes, kRoomy), 3);
  EXPECT_EQ(pace.BlocksBeforeStep(20'100, kBlockBytes, kRoomy), 6);
  EXPECT_EQ(pace.BlocksBeforeStep(20'100, 2 * kBlockBytes, kRoomy), 3) << "larger blocks";
  EXPECT_EQ(pace.BlocksBeforeStep(1e6, kBlockBytes, kRoomy), MovingPace::kBlocksMax);
  EXPECT_EQ(pace.BlocksBeforeStep(10, kBlockBytes, kRoomy), 1) << "some always move";
  EXPECT_EQ(Measured(absl::Microseconds(25)).BlocksBeforeStep(10'100, kBlockBytes, kRoomy), 12);
}

TEST(MovingPace, StaysAheadOfWhatTheSequencesTake) {
  const MovingPace pace = Measured(absl::Milliseconds(1));
  MovingPace::Room room = kRoomy;
  EXPECT_EQ(pace.BlocksBeforeStep(10'000, kBlockBytes, room), 1);
  // Four sequences take 20 blocks in 40 steps of 8 tokens.
  room = {.unsent = 160, .available = 20, .sequences = 4, .block_tokens = 8};
  EXPECT_EQ(pace.BlocksBeforeStep(10'000, kBlockBytes, room), 4);
  room.unsent = 161;
  EXPECT_EQ(pace.BlocksBeforeStep(10'000, kBlockBytes, room), 5);
  // The next step may find no block for each.
  room.available = 4;
  EXPECT_EQ(pace.BlocksBeforeStep(10'000, kBlockBytes, room), MovingPace::kBlocksMax);
}

TEST(MovingPace, SendsWhatIsDueInTheTimeThatIsLeft) {
  const MovingPace pace = Measured(absl::Milliseconds(1));
  // 100 steps of 10 ms.
  EXPECT_EQ(MovingPace::BlocksToFinish(100, absl::Seconds(1), 10'000), 1);
  EXPECT_EQ(MovingPace::BlocksToFinish(101, absl::Seconds(1), 10'000), 2);
  EXPECT_EQ(MovingPace::BlocksToFinish(101, absl::Milliseconds(3), 10'000), 101);
  EXPECT_EQ(MovingPace::BlocksToFinish(101, -absl::Seconds(3), 10'000), 101);
  EXPECT_EQ(MovingPace::BlocksToFinish(101, absl::Seconds(1), 0), 0);
  MovingPace::Room room = kRoomy;
  room.due = 4;
  EXPECT_EQ(pace.BlocksBeforeStep(10'000, kBlockBytes, room), 4);
  room.due = 1000;
  EXPECT_EQ(pace.BlocksBeforeStep(10'000, kBlockBytes, room), MovingPace::kBlocksMax);
}

TEST(MovingPace, KnowsWhatItSendsInATime) {
  const MovingPace pace = Measured(absl::Milliseconds(1));
  MovingPace::Room room = kRoomy;
  // Three blocks before each step of 110 ms.
  room.unsent = 27;
  EXPECT_TRUE(pace.SendsWithin(absl::Seconds(1), 110'000, kBlockBytes, room));
  room.unsent = 28;
  EXPECT_FALSE(pace.SendsWithin(absl::Seconds(1), 110'000, kBlockBytes, room));
  EXPECT_TRUE(pace.SendsWithin(absl::Seconds(1), 0, kBlockBytes, room)) << "nothing is known";
  room.available = 0;
  EXPECT_TRUE(pace.SendsWithin(absl::Seconds(1), 110'000, kBlockBytes, room)) << "it runs short";
}

TEST(MovingPace, WithoutMeasurementsItIsCareful) {
  const MovingPace pace;
  EXPECT_EQ(pace.BlocksBeforeStep(0, kBlockBytes, kRoomy), MovingPace::kBlocksMax)
      << "nothing is known of a step";
  // A block is taken to need 262 us.
  EXPECT_EQ(pace.BlocksBeforeStep(30'000, kBlockBytes, kRoomy), 3);
}

TEST(MovingPace, AnythingAtAllGivesANumberInItsRange) {
  const unsigned seed = std::random_device()();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const std::vector<double> steps = {-1, 0, 1e-9, 1, 1e6, 1e300};
  const std::vector<int64_t> bytes = {0, 1, kBlockBytes, int64_t{1} << 40};
  const std::vector<int64_t> counts = {0, 1, 7, 1000, int64_t{1} << 30};
  const auto any = [&](const auto& values) { return values[random() % values.size()]; };
  MovingPace pace;
  for (int i = 0; i < 2000; ++i) {
    pace.Observe(any(bytes), absl::Nanoseconds(static_cast<int64_t>(random() % 1'000'000'000)) -
                                 absl::Milliseconds(1));
    const int32_t blocks = pace.BlocksBeforeStep(any(steps), any(bytes),
                                                 {.unsent = any(counts),
                                                  .available = any(counts),
                                                  .sequences = any(counts),
                                                  .block_tokens = 1 + any(counts) % 1024,
                                                  .due = any(counts)});
    ASSERT_GE(blocks, 1);
    ASSERT_LE(blocks, MovingPace::kBlocksMax);
  }
}

}  // namespace
}  // namespace tandem::node
