// Goal: percentiles are within 1 % of those of the sorted durations, whatever their range.
#include "sim/trace/latency_histogram.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tandem::sim {
namespace {

TEST(LatencyHistogram, AgreesWithTheSortedList) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  std::mt19937_64 random(seed);
  for (const size_t count : {size_t{1}, size_t{2}, size_t{99}, size_t{100}, size_t{20'000}}) {
    LatencyHistogram histogram;
    std::vector<double> sorted;
    std::lognormal_distribution<double> draw(0, 5);
    for (size_t i = 0; i < count; ++i) {
      const double ms = draw(random);
      histogram.Add(absl::Milliseconds(ms));
      sorted.push_back(ms);
    }
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(histogram.count(), count);
    EXPECT_NEAR(histogram.max_ms(), sorted.back(), 1e-6 * sorted.back() + 1e-5);
    for (const size_t permille : {10, 500, 900, 990, 999, 1000}) {
      const double exact = sorted[(permille * count + 999) / 1000 - 1];
      const double percent = static_cast<double>(permille) / 10;
      EXPECT_NEAR(histogram.PercentileMs(percent), exact, 0.01 * exact + 1e-5)
          << percent << " % of " << count;
    }
  }
  EXPECT_EQ(LatencyHistogram().PercentileMs(99), 0);
}

TEST(LatencyHistogram, TakesTheShortestAndTheLongest) {
  LatencyHistogram histogram;
  histogram.Add(absl::Seconds(-1));
  histogram.Add(absl::InfiniteDuration());
  EXPECT_EQ(histogram.PercentileMs(50), 0);
  EXPECT_GT(histogram.PercentileMs(100), 9e12);
}

}  // namespace
}  // namespace tandem::sim
