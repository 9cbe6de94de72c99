// Goal: a step's cost is learned from noisy steps, follows a machine that changes, keeps what it
// knows of terms that do not occur, and survives any nonsense that a clock or a caller produces.
#include "common/cost/step_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/cost/link_cost.h"
#include "common/runtime/random.h"

namespace tandem::cost {
namespace {

constexpr uint64_t kSeed = 20261123;

class StepCostTest : public ::testing::Test {
 protected:
  StepCostTest() { RecordProperty("seed", static_cast<int>(kSeed)); }

  int64_t Below(int64_t bound) { return static_cast<int64_t>(random_->Below(bound)); }
  // A factor around 1, uniform within `width`.
  double Noise(double width) { return 1 + width * (static_cast<double>(Below(2001)) / 1000 - 1); }

  // What a node computes: up to `sequences` generated rows, perhaps a chunk of a prompt.
  StepShape Decode(int64_t sequences) {
    StepShape shape;
    for (int64_t i = 0; i < sequences; ++i) shape.Add(Below(4000), 1, true);
    return shape;
  }
  StepShape Mixed() {
    StepShape shape = Decode(1 + Below(32));
    if (Below(2) == 0) shape.Add(32 * Below(60), 2 + Below(500), Below(8) == 0);
    return shape;
  }
  void Run(int64_t steps, const StepProfile& truth, double noise) {
    for (int64_t i = 0; i < steps; ++i) {
      const StepShape shape = Mixed();
      cost_->Observe(shape, truth.Predict(shape).us * Noise(noise));
    }
  }
  double RelativeError(const StepShape& shape, const StepProfile& truth) {
    return std::abs(cost_->Predict(shape).us / truth.Predict(shape).us - 1);
  }

  const std::unique_ptr<Random> random_ = NewSeededRandom(kSeed);
  const StepProfile truth_{.step_us = 9000,
                           .prompt_row_us = 450,
                           .prompt_attended_us = 0.12,
                           .generated_row_us = 700,
                           .generated_attended_us = 0.9,
                           .sampled_row_us = 150};
  std::optional<StepCost> cost_{std::in_place};
};

TEST_F(StepCostTest, AShapeAddsUpItsSlices) {
  StepShape shape;
  shape.Add(10, 1, true);    // attends to 11 tokens
  shape.Add(100, 3, false);  // to 101 + 102 + 103
  shape.Add(0, 2, true);     // to 1 + 2; the second is sampled
  EXPECT_EQ(shape.generated_rows, 1);
  EXPECT_EQ(shape.generated_attended, 11);
  EXPECT_EQ(shape.prompt_rows, 5);
  EXPECT_EQ(shape.prompt_attended, 309);
  EXPECT_EQ(shape.sampled_rows, 2);
}

TEST_F(StepCostTest, KnowsNothingBeforeTheFirstStep) {
  EXPECT_EQ(cost_->Predict(Decode(1)).us, 0);
  EXPECT_TRUE(std::isinf(cost_->Predict(Decode(1)).error_us));
  EXPECT_EQ(cost_->profile().median_relative_error, 0);
  EXPECT_TRUE(cost_->profile().Plausible());
}

TEST_F(StepCostTest, OneStepPredictsTheSameStep) {
  StepShape shape = Decode(8);
  cost_->Observe(shape, 12000);
  EXPECT_NEAR(cost_->Predict(shape).us, 12000, 12);
}

TEST_F(StepCostTest, LearnsExactTimesExactly) {
  Run(600, truth_, 0);
  for (int i = 0; i < 200; ++i) EXPECT_LT(RelativeError(Mixed(), truth_), 0.005);
  EXPECT_LT(cost_->profile().relative_error, 0.01);
}

// A sample that was predicted exactly counts and moves no coefficient; what changes afterwards, be
// it slowly, is learned.
TEST_F(StepCostTest, ExactSamplesCountAndHideNoChange) {
  Run(200, truth_, 0);
  const StepShape shape = Mixed();
  const double known = cost_->Predict(shape).us, error = cost_->Predict(shape).error_us;
  const StepProfile before = cost_->profile();
  cost_->Observe(shape, known);
  const StepProfile after = cost_->profile();
  EXPECT_EQ(after.samples, before.samples + 1);
  EXPECT_EQ(after.step_us, before.step_us);
  EXPECT_EQ(after.generated_attended_us, before.generated_attended_us);
  EXPECT_LT(cost_->Predict(shape).error_us, error);
  // By three millionths a step, the machine becomes slower.
  StepProfile slower = truth_;
  for (int i = 0; i < 3000; ++i) {
    for (double* term :
         {&slower.step_us, &slower.prompt_row_us, &slower.prompt_attended_us,
          &slower.generated_row_us, &slower.generated_attended_us, &slower.sampled_row_us})
      *term *= 1 + 3e-6;
    Run(1, slower, 0);
  }
  EXPECT_LT(RelativeError(shape, slower), 1e-3);
}

TEST_F(StepCostTest, LearnsThroughNoiseAndSaysHowMuchThereIs) {
  Run(2000, truth_, 0.2);
  double worst = 0;
  for (int i = 0; i < 200; ++i) worst = std::max(worst, RelativeError(Mixed(), truth_));
  EXPECT_LT(worst, 0.12);
  // Uniform within 20 %: a root mean square of 11.5 %, a median of 10 %.
  const StepProfile profile = cost_->profile();
  EXPECT_NEAR(profile.relative_error, 0.115, 0.04);
  EXPECT_NEAR(profile.median_relative_error, 0.10, 0.04);
  EXPECT_NEAR(profile.predicted_us / profile.actual_us, 1, 0.05);
}

TEST_F(StepCostTest, FollowsAMachineThatBecomesSlower) {
  Run(1000, truth_, 0.1);
  StepProfile slow = truth_;
  for (double* us : {&slow.step_us, &slow.prompt_row_us, &slow.prompt_attended_us,
                     &slow.generated_row_us, &slow.generated_attended_us, &slow.sampled_row_us})
    *us *= 3;
  Run(150, slow, 0.1);
  double sum = 0;
  for (int i = 0; i < 100; ++i) sum += RelativeError(Mixed(), slow);
  EXPECT_LT(sum / 100, 0.15);
}

TEST_F(StepCostTest, AnHourOfGenerationDoesNotForgetPrompts) {
  Run(600, truth_, 0.05);
  for (int i = 0; i < 50000; ++i) {
    const StepShape shape = Decode(1 + Below(32));
    cost_->Observe(shape, truth_.Predict(shape).us * Noise(0.05));
  }
  for (int i = 0; i < 100; ++i) EXPECT_LT(RelativeError(Mixed(), truth_), 0.15);
}

TEST_F(StepCostTest, TermsThatAlwaysOccurTogetherDoNotBlowUp) {
  StepShape shape;
  for (int i = 0; i < 8; ++i) shape.Add(1000, 1, true);
  for (int i = 0; i < 100000; ++i) cost_->Observe(shape, 20000 * Noise(0.1));
  EXPECT_NEAR(cost_->Predict(shape).us, 20000, 1000);
  EXPECT_TRUE(cost_->profile().Plausible());
  // What it has never seen is predicted with a larger error.
  StepShape prompt;
  prompt.Add(0, 512, true);
  const StepPrediction known = cost_->Predict(shape), unknown = cost_->Predict(prompt);
  EXPECT_GT(unknown.error_us / (unknown.us + 1), known.error_us / known.us);
}

TEST_F(StepCostTest, NoCoefficientIsNegative) {
  // The more rows, the faster: no sum of costs does that.
  for (int i = 0; i < 2000; ++i) {
    const int64_t rows = 1 + Below(500);
    StepShape shape;
    shape.Add(0, 1 + rows, false);
    cost_->Observe(shape, 1e6 / static_cast<double>(rows));
    ASSERT_TRUE(cost_->profile().Plausible());
  }
}

TEST_F(StepCostTest, RejectsNonsenseAndStaysAsItWas) {
  Run(600, truth_, 0.05);
  const StepProfile before = cost_->profile();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  const StepShape good = Mixed();
  for (const double us : {nan, infinity, -infinity, 0.0, -5.0, OnlineFit::kTimeMax * 1.01})
    EXPECT_EQ(cost_->Observe(good, us), OnlineFit::Verdict::kRejected) << us;
  EXPECT_EQ(cost_->Observe({}, 1000), OnlineFit::Verdict::kRejected);
  EXPECT_EQ(cost_->Observe({.prompt_rows = -1}, 1000), OnlineFit::Verdict::kRejected);
  EXPECT_EQ(cost_->Observe({.prompt_rows = std::numeric_limits<int64_t>::max()}, 1000),
            OnlineFit::Verdict::kRejected);
  const StepProfile after = cost_->profile();
  EXPECT_EQ(after.rejected, 9);
  EXPECT_EQ(after.samples, before.samples);
  EXPECT_EQ(after.prompt_row_us, before.prompt_row_us);
}

TEST_F(StepCostTest, ClipsWhatIsFarOff) {
  Run(600, truth_, 0.05);
  const int64_t clipped_before = cost_->profile().clipped;
  // A clock that jumps, a process that was stopped: one step in 20 takes 1,000 times as long, or no
  // time at all.
  for (int i = 0; i < 2000; ++i) {
    const StepShape shape = Mixed();
    double us = truth_.Predict(shape).us * Noise(0.05);
    if (i % 40 == 0) us *= 1000;
    if (i % 40 == 20) us = 0.001;
    cost_->Observe(shape, us);
  }
  EXPECT_EQ(cost_->profile().clipped - clipped_before, 100);
  double sum = 0;
  for (int i = 0; i < 100; ++i) sum += RelativeError(Mixed(), truth_);
  EXPECT_LT(sum / 100, 0.15);
}

TEST_F(StepCostTest, RecoversFromAFirstSampleOfNonsense) {
  for (const double first_us : {0.001, 1e9}) {
    cost_.emplace();
    cost_->Observe(Mixed(), first_us);
    Run(1000, truth_, 0.05);
    double sum = 0;
    for (int i = 0; i < 100; ++i) sum += RelativeError(Mixed(), truth_);
    EXPECT_LT(sum / 100, 0.15) << first_us;
  }
}

TEST_F(StepCostTest, AnythingAtAllLeavesItPlausible) {
  const std::vector<double> times = {1e-9, 1, 1e3, 1e6, 1e9, -1, std::nan("")};
  for (int i = 0; i < 20000; ++i) {
    StepShape shape;
    const int64_t limit = int64_t{1} << Below(50);
    if (Below(2) == 0) shape.prompt_rows = Below(limit);
    if (Below(2) == 0) shape.prompt_attended = Below(limit);
    if (Below(2) == 0) shape.generated_rows = Below(limit);
    if (Below(2) == 0) shape.generated_attended = Below(limit);
    if (Below(2) == 0) shape.sampled_rows = Below(limit);
    cost_->Observe(shape, times[Below(times.size())] * Noise(0.5));
    const StepPrediction prediction = cost_->Predict(Mixed());
    ASSERT_TRUE(cost_->profile().Plausible()) << "sample " << i;
    ASSERT_TRUE(std::isfinite(prediction.us) && prediction.us >= 0) << "sample " << i;
    ASSERT_FALSE(std::isnan(prediction.error_us)) << "sample " << i;
  }
}

TEST_F(StepCostTest, AProfilePredictsWhatTheFitDoes) {
  Run(600, truth_, 0.1);
  const StepShape shape = Mixed();
  EXPECT_NEAR(cost_->profile().Predict(shape).us, cost_->Predict(shape).us, 1e-6);
  StepProfile broken = cost_->profile();
  broken.sampled_row_us = std::nan("");
  EXPECT_FALSE(broken.Plausible());
  broken.sampled_row_us = -1;
  EXPECT_FALSE(broken.Plausible());
}

TEST_F(StepCostTest, ALinkTellsItsFixedPartFromItsRate) {
  LinkCost link;
  for (int i = 0; i < 500; ++i) {
    const int64_t bytes = 1000 + Below(50'000'000);
    link.Observe(bytes, (300 + static_cast<double>(bytes) / 2000) * Noise(0.1));
  }
  EXPECT_NEAR(link.bytes_per_second() / 2e9, 1, 0.05);
  EXPECT_NEAR(link.fixed_us(), 300, 150);
  EXPECT_NEAR(link.Predict(20'000'000).value, 10300, 500);
}

TEST_F(StepCostTest, ALinkWhoseBytesCostNothingHasNoRate) {
  LinkCost link;
  EXPECT_EQ(link.bytes_per_second(), 0);
  for (int i = 0; i < 200; ++i) link.Observe(i % 2 == 0 ? 1000 : 2'000'000, i % 2 == 0 ? 900 : 400);
  EXPECT_EQ(link.bytes_per_second(), 0);
  EXPECT_GT(link.Predict(1000).value, 0);
}

}  // namespace
}  // namespace tandem::cost
