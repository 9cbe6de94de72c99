// Goal: few retries are made at once; many are spread out and never more than the budget a second;
// a request's later retries wait longer.
#include "router/core/retry_budget.h"

#include <gtest/gtest.h>

#include <memory>

namespace tandem::router {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

TEST(RetryBudget, ABurstIsFreeWhatIsBeyondItWaits) {
  const auto random = NewSeededRandom(7);
  RetryBudget budget(*random);
  for (int i = 0; i < RetryBudget::kBurst; ++i) {
    EXPECT_TRUE(budget.HasRoom(kStart));
    ASSERT_EQ(budget.Take(1, kStart), absl::ZeroDuration()) << i;
  }
  EXPECT_FALSE(budget.HasRoom(kStart));
  // An outage: 1,000 more at once come back over five seconds, none in the first of them more
  // than twice the budget, and no two halves alike.
  int within_a_second = 0;
  absl::Duration longest;
  for (int i = 0; i < 1000; ++i) {
    const absl::Duration wait = budget.Take(1, kStart);
    EXPECT_GT(wait, absl::ZeroDuration());
    within_a_second += wait <= absl::Seconds(1);
    longest = std::max(longest, wait);
  }
  EXPECT_LE(within_a_second, 2 * RetryBudget::kPerSecond);
  EXPECT_GE(within_a_second, RetryBudget::kPerSecond / 2);
  EXPECT_GT(longest, absl::Seconds(2.5));
  EXPECT_LE(longest, absl::Seconds(5));
  EXPECT_FALSE(budget.HasRoom(kStart + absl::Seconds(4)));
  EXPECT_TRUE(budget.HasRoom(kStart + absl::Seconds(6)));
}

// 40,000 sequences lose their nodes at once.
TEST(RetryBudget, NoRetryWaitsForLongerThanTheBound) {
  constexpr absl::Duration kWaitMax = absl::Seconds(30);
  const auto random = NewSeededRandom(10);
  RetryBudget budget(*random, kWaitMax);
  absl::Duration longest;
  for (int i = 0; i < 40000; ++i) longest = std::max(longest, budget.Take(1, kStart));
  EXPECT_LE(longest, kWaitMax);
  EXPECT_GT(longest, kWaitMax * 0.9);
  // Nothing is owed beyond that.
  EXPECT_FALSE(budget.HasRoom(kStart + kWaitMax));
  EXPECT_TRUE(budget.HasRoom(kStart + kWaitMax + absl::Seconds(1)));
}

TEST(RetryBudget, LaterRetriesOfOneRequestWaitLongerUpToABound) {
  const auto random = NewSeededRandom(8);
  RetryBudget budget(*random);
  for (int retry = 2; retry < 40; ++retry) {
    const absl::Duration full = std::min(RetryBudget::kBackoffMin * (1 << std::min(retry - 2, 10)),
                                         RetryBudget::kBackoffMax);
    const absl::Duration wait = budget.Take(retry, kStart);
    EXPECT_GE(wait, full / 2) << retry;
    EXPECT_LE(wait, full) << retry;
  }
}

TEST(RetryBudget, FillsUpToItsBurstAndNoFurther) {
  const auto random = NewSeededRandom(9);
  RetryBudget budget(*random);
  budget.Take(1, kStart);
  const absl::Time later = kStart + absl::Hours(10);
  for (int i = 0; i < RetryBudget::kBurst; ++i)
    ASSERT_EQ(budget.Take(1, later), absl::ZeroDuration());
  EXPECT_GT(budget.Take(1, later), absl::ZeroDuration());
}

}  // namespace
}  // namespace tandem::router
