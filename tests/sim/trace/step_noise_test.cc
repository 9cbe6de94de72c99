// Goal: step noise gives factors of the distribution that it was made of, with a mean of 1; what is
// learned from gaps is how late steps are, not how large their batches are; a simulation with noise
// repeats exactly, and its mean step stays.
#include "sim/trace/step_noise.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace tandem::sim {
namespace {

using ::testing::HasSubstr;

std::vector<double> Draw(const StepNoise& noise, uint64_t seed, int count) {
  const auto random = NewSeededRandom(seed);
  std::vector<double> factors;
  for (int i = 0; i < count; ++i) factors.push_back(noise.Factor(*random));
  return factors;
}

double At(std::vector<double> values, double share) {
  const auto rank = static_cast<ptrdiff_t>(share * static_cast<double>(values.size()));
  std::nth_element(values.begin(), values.begin() + rank, values.end());
  return values[static_cast<size_t>(rank)];
}

double MeanOf(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

TEST(StepNoise, WithoutQuantilesNothingIsDrawn) {
  const auto random = NewSeededRandom(7), same = NewSeededRandom(7);
  EXPECT_EQ(StepNoise().Factor(*random), 1);
  EXPECT_EQ(random->Next(), same->Next());
}

TEST(StepNoise, FactorsAreOfTheDistribution) {
  // Its mean is 0.9 * (0.8 + 1) / 2 + 0.1 * (1 + 3) / 2 = 1.01.
  const auto noise = StepNoise::Create({{0, 0.8}, {90, 1}, {100, 3}});
  ASSERT_TRUE(noise.ok()) << noise.status();
  const std::vector<double> factors = Draw(*noise, 42, 1'000'000);
  EXPECT_NEAR(MeanOf(factors), 1, 0.002);
  EXPECT_NEAR(At(factors, 0.45), 0.9 / 1.01, 0.002);
  EXPECT_NEAR(At(factors, 0.90), 1 / 1.01, 0.02) << "the slope changes here";
  EXPECT_NEAR(At(factors, 0.95), 2 / 1.01, 0.01);
  EXPECT_GE(At(factors, 0), 0.8 / 1.01 - 1e-12);
  EXPECT_EQ(factors, Draw(*noise, 42, 1'000'000)) << "the seed decides all";
}

TEST(StepNoise, OnlyProportionsCount) {
  const auto noise = StepNoise::Create({{0, 1}, {100, 2}});
  const auto tenfold = StepNoise::Create({{0, 10}, {100, 20}});
  ASSERT_TRUE(noise.ok() && tenfold.ok());
  const std::vector<double> a = Draw(*noise, 3, 100), b = Draw(*tenfold, 3, 100);
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-12);
}

TEST(StepNoise, RefusesWhatIsNoDistribution) {
  const std::pair<std::vector<NoiseQuantile>, const char*> bad[] = {
      {{}, "has 0 quantiles, expected 2 to 1000"},
      {{{0, 1}}, "has 1 quantiles"},
      {std::vector<NoiseQuantile>(1001), "has 1001 quantiles"},
      {{{1, 1}, {100, 2}}, "go from 1 to 100 %, expected 0 to 100"},
      {{{0, 1}, {99, 2}}, "go from 0 to 99 %"},
      {{{0, 1}, {50, 2}, {50, 3}, {100, 4}}, "quantile of 50 % has factor 3"},
      {{{0, 1}, {50, 2}, {100, 1}}, "quantile of 100 % has factor 1"},
      {{{0, 0}, {100, 1}}, "quantile of 0 % has factor 0"},
      {{{0, 1}, {100, 1001}}, "above 0 and at most 1000"},
      {{{0, std::nan("")}, {100, 1}}, "has factor nan"}};
  for (const auto& [quantiles, why] : bad) {
    const auto refused = StepNoise::Create(quantiles);
    EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << why;
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr(why));
  }
  std::vector<NoiseQuantile> most;
  for (int i = 0; i < 1000; ++i) most.push_back({100 * i / 999.0, 1});
  most.back() = {100, StepNoise::kFactorMax};
  EXPECT_TRUE(StepNoise::Create(most).ok());
}

double LearnedAt(const std::vector<NoiseQuantile>& quantiles, double percent) {
  for (const NoiseQuantile& quantile : quantiles)
    if (quantile.percent == percent) return quantile.factor;
  ADD_FAILURE() << "no quantile of " << percent << " %";
  return 0;
}

TEST(GapNoise, LearnsHowLateStepsAreAndNotHowLargeTheirBatches) {
  GapNoise learned;
  for (int answer = 0; answer < 20; ++answer) {
    // The batch grows and shrinks: a gap takes 10 ms, then 40, then 20. Three of a hundred steps
    // are late by half. The first gap holds a KV transfer.
    std::vector<float> gaps;
    for (int i = 0; i < 600; ++i) {
      const float usual = i < 200 ? 10.F : i < 400 ? 40.F : 20.F;
      gaps.push_back(i % 33 == 16 ? 1.5F * usual : usual);
    }
    gaps.front() = 5000;
    learned.Add(gaps);
  }
  const std::vector<NoiseQuantile> quantiles = learned.Quantiles();
  EXPECT_NEAR(LearnedAt(quantiles, 5), 1, 0.01);
  EXPECT_NEAR(LearnedAt(quantiles, 50), 1, 0.01);
  EXPECT_NEAR(LearnedAt(quantiles, 95), 1, 0.01);
  EXPECT_NEAR(LearnedAt(quantiles, 98), 1.5, 0.02);
  EXPECT_NEAR(LearnedAt(quantiles, 99), 1.5, 0.02);
  EXPECT_LT(LearnedAt(quantiles, 100), 5) << "neither a transfer nor a batch that grows";
  EXPECT_TRUE(StepNoise::Create(quantiles).ok());
}

TEST(GapNoise, ShortAnswersAndTokensThatComeTogetherAreTaken) {
  GapNoise learned;
  learned.Add(std::vector<float>(GapNoise::kGapsMin - 1, 10.F));
  EXPECT_TRUE(learned.Quantiles().empty());
  learned.Add(std::vector<float>(GapNoise::kGapsMin, 0.F));
  EXPECT_TRUE(learned.Quantiles().empty()) << "no gap says how long a step is";
  std::vector<float> gaps(20, 10.F);
  gaps[10] = 0;
  learned.Add(gaps);
  EXPECT_TRUE(StepNoise::Create(learned.Quantiles()).ok());
}

}  // namespace
}  // namespace tandem::sim
