// Goal: the base types keep their contracts: queues are bounded, close and drain; macros propagate
// errors; ids compare.
#include <sys/resource.h>

#include <thread>

#include "common/base/bounded_queue.h"
#include "common/base/check.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/runtime/random.h"
#include "tests/testing/status_matchers.h"

namespace tandem {
namespace {

TEST(BoundedQueue, RefusesBeyondItsBoundAndCountsIt) {
  BoundedQueue<int> queue(2);
  EXPECT_TRUE(queue.TryPush(1));
  EXPECT_TRUE(queue.TryPush(2));
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_EQ(queue.refused_count(), 1u);
  EXPECT_EQ(queue.Pop(absl::ZeroDuration()), 1);
  EXPECT_TRUE(queue.TryPush(4));
}

TEST(BoundedQueue, CloseDrainsTheQueueAndWakesWaiters) {
  BoundedQueue<int> queue(4);
  queue.TryPush(7);
  std::thread closer([&] { queue.Close(); });
  EXPECT_EQ(queue.Pop(absl::InfiniteDuration()), 7);
  EXPECT_EQ(queue.Pop(absl::InfiniteDuration()), std::nullopt);
  closer.join();
  EXPECT_FALSE(queue.TryPush(8));
  EXPECT_FALSE(queue.Push(8));
}

// The engine's and the transfer thread look into their queues between two pieces of work.
TEST(BoundedQueue, AThreadThatWaitsForNoTimeDoesNotSleep) {
  const auto sleeps = [] {
    rusage usage = {};
    EXPECT_EQ(::getrusage(RUSAGE_THREAD, &usage), 0);
    return usage.ru_nvcsw;  // the times that this thread gave its processor up
  };
  BoundedQueue<int> queue(1);
  const auto before = sleeps();
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(queue.PopAll(absl::ZeroDuration()).empty());
    EXPECT_EQ(queue.Pop(-absl::Seconds(1)), std::nullopt);
  }
  EXPECT_LT(sleeps() - before, 20) << "in 2,000 looks into an empty queue";
}

absl::StatusOr<int> Half(int n) {
  if (n % 2 != 0) return absl::InvalidArgumentError("odd");
  return n / 2;
}
absl::StatusOr<int> Quarter(int n) {
  ASSIGN_OR_RETURN(const int half, Half(n));
  RETURN_IF_ERROR(Half(half).status());
  return half / 2;
}

TEST(StatusMacros, ReturnTheFirstError) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_THAT(Quarter(6), testing::StatusIs(absl::StatusCode::kInvalidArgument, "odd"));
  EXPECT_THAT(Quarter(5), testing::StatusIs(absl::StatusCode::kInvalidArgument, "odd"));
}

TEST(CheckDeathTest, EndsTheProcessWithTheDetail) {
  EXPECT_DEATH(TANDEM_CHECK(1 + 1 == 3, "block ", 17), "invariant broken: 1 \\+ 1 == 3 block 17");
}

TEST(Random, SeededSequencesRepeatAndStayBelowTheirBound) {
  auto a = NewSeededRandom(5), b = NewSeededRandom(5);
  for (int i = 0; i < 1000; ++i) {
    const uint64_t x = a->Below(10);
    EXPECT_EQ(x, b->Below(10));
    EXPECT_LT(x, 10u);
  }
}

}  // namespace
}  // namespace tandem
