// Goal: a node's waiting prompts are summed in the order in which it computes them, and the sums
// come back to nothing.
#include "router/fleet/prompt_work.h"

#include <utility>
#include <vector>

#include "common/runtime/random.h"
#include "gtest/gtest.h"

namespace tandem::router {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);

absl::Time At(double seconds) { return kStart + absl::Seconds(seconds); }

TEST(PromptWork, CountsWhatComesBefore) {
  PromptWork work;
  EXPECT_EQ(work.AheadUs(At(5), kStart), 0);
  work.Add({800, At(9.2)}, kStart);
  work.Add({2000, At(14)}, kStart);
  work.Add({500, At(10.4)}, kStart);
  work.Add({300, At(9.9)}, kStart);
  EXPECT_EQ(work.AheadUs(At(10), kStart), 1100);
  EXPECT_EQ(work.AheadUs(At(14), kStart), 3600) << "of equal ranks the earlier one comes first";
  EXPECT_EQ(work.AheadUs(At(1), kStart), 0);
  EXPECT_TRUE(work.IsFirst(At(1)));
  EXPECT_FALSE(work.IsFirst(At(10)));
  // The first one runs, for as long as a mean prompt at most.
  EXPECT_EQ(work.AheadUs(At(10), kStart + absl::Microseconds(400)), 700);
  EXPECT_EQ(work.AheadUs(At(10), kStart + absl::Seconds(1)), 200);
  // Once another one comes before it, the node turns to that.
  work.Add({50, At(8)}, kStart + absl::Seconds(1));
  EXPECT_EQ(work.AheadUs(At(10), kStart + absl::Seconds(1)), 1150);
}

TEST(PromptWork, ComesBackToNothing) {
  PromptWork work;
  const auto random = NewSeededRandom(9);
  std::vector<PromptWork::Entry> open;
  for (int i = 0; i < 100'000; ++i) {
    const absl::Time now = kStart + absl::Microseconds(i);
    if (open.empty() || random->Below(2) == 0) {
      // Whole tenths of a second, so that equal ranks stay equal.
      open.push_back({static_cast<double>(random->Below(1'000'000)) / 7,
                      At(static_cast<double>(random->Below(100)) / 10)});
      work.Add(open.back(), now);
    } else {
      std::swap(open[random->Below(open.size())], open.back());
      work.Remove(open.back(), now);
      open.pop_back();
    }
    const absl::Time rank = At(static_cast<double>(random->Below(100)) / 10);
    double ahead = 0;
    for (const PromptWork::Entry& entry : open)
      if (entry.rank <= rank) ahead += entry.us;
    ASSERT_GE(work.AheadUs(rank, now), 0);
    ASSERT_LE(work.AheadUs(rank, now), ahead + 1e-3);
    const double mean = open.empty() ? 0 : work.us() / static_cast<double>(open.size());
    ASSERT_GE(work.AheadUs(rank, now), ahead - mean - 1e-3);
    ASSERT_LE(work.RemainingUs(now), work.us());
  }
  while (!open.empty()) {
    work.Remove(open.back(), kStart);
    open.pop_back();
  }
  EXPECT_EQ(work.us(), 0);
  EXPECT_EQ(work.RemainingUs(kStart), 0);
}

}  // namespace
}  // namespace tandem::router
