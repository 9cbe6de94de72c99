// Goal: a node whose steps do not end, or all fail, is not live after its deadline, though it looks
// idle in between; one bad request, or a pause, costs no node its life.
#include "common/node/step_progress.h"

#include <gtest/gtest.h>

namespace tandem::node {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(120);

class StepProgressTest : public ::testing::Test {
 protected:
  bool live() const { return progress_.live(now_); }
  // One step, and nothing more to compute after it.
  bool Step(bool ok) {
    progress_.OnStepBegins(now_);
    const bool counts = progress_.OnStepEnds(ok, now_);
    progress_.OnIdle();
    return counts;
  }

  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  StepProgress progress_{kDeadline};
};

TEST_F(StepProgressTest, AStepThatDoesNotEnd) {
  EXPECT_TRUE(live()) << "idle";
  progress_.OnStepBegins(now_);
  now_ += kDeadline - absl::Milliseconds(1);
  EXPECT_TRUE(live());
  now_ += absl::Milliseconds(1);
  EXPECT_FALSE(live());
  progress_.OnStepEnds(/*ok=*/true, now_);
  EXPECT_TRUE(live());
}

TEST_F(StepProgressTest, StepsThatAllFailWhileThereIsWork) {
  for (int i = 0; i < 5; ++i) {
    EXPECT_TRUE(live());
    progress_.OnStepBegins(now_);
    now_ += kDeadline / 5;
    progress_.OnStepEnds(/*ok=*/false, now_);
  }
  EXPECT_FALSE(live());
}

TEST_F(StepProgressTest, StepsThatAllFailWithPausesBetween) {
  for (int64_t i = 1; i <= StepProgress::kFailuresMax; ++i) {
    EXPECT_EQ(Step(/*ok=*/false), i == StepProgress::kFailuresMax);
    EXPECT_TRUE(live());
    now_ += absl::Seconds(1);
  }
  now_ += kDeadline;
  EXPECT_FALSE(live()) << "though there is nothing to compute";
  EXPECT_FALSE(Step(/*ok=*/false)) << "it was said before";
  EXPECT_FALSE(live());
  Step(/*ok=*/true);
  EXPECT_TRUE(live());
}

TEST_F(StepProgressTest, FewFailuresAndAPauseAreNoFault) {
  for (int64_t i = 1; i < StepProgress::kFailuresMax; ++i) Step(/*ok=*/false);
  now_ += 10 * kDeadline;
  EXPECT_TRUE(live());
  Step(/*ok=*/true);
  for (int64_t i = 1; i < StepProgress::kFailuresMax; ++i) Step(/*ok=*/false);
  now_ += 10 * kDeadline;
  EXPECT_TRUE(live()) << "a step that ended well lay between";
}

TEST_F(StepProgressTest, FailuresAfterALongPauseHaveTheirTime) {
  Step(/*ok=*/true);
  now_ += 10 * kDeadline;
  for (int64_t i = 0; i < StepProgress::kFailuresMax; ++i) Step(/*ok=*/false);
  EXPECT_TRUE(live());
  now_ += kDeadline;
  EXPECT_FALSE(live());
}

}  // namespace
}  // namespace tandem::node
