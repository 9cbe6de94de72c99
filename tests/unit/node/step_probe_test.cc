// Goal: a node that has computed nothing but a few small steps predicts its first requests' steps,
// and the probe fits into the smallest engine.
#include "common/node/step_probe.h"

#include <gtest/gtest.h>

#include "common/engine/hash/hash_engine.h"
#include "common/runtime/waiter.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

// Time passes only while the hash engine waits.
class VirtualTime final : public Clock, public Waiter {
 public:
  absl::Time Now() const override { return now_; }
  void Wait(absl::Duration duration) override { now_ += duration; }

 private:
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

class StepProbeTest : public ::testing::Test {
 protected:
  absl::StatusOr<cost::StepCost> ProbeHashEngine(int64_t blocks, int32_t context_tokens,
                                                 int64_t max_batch_tokens) {
    const auto engine = engine::NewHashEngine({.context_tokens = context_tokens,
                                               .step_time = absl::Milliseconds(2),
                                               .row_time = absl::Microseconds(100)},
                                              time_);
    EXPECT_OK(engine.status());
    EXPECT_OK((*engine)->AllocateKv(blocks));
    return ProbeStepCost(**engine, max_batch_tokens, time_);
  }

  VirtualTime time_;
};

TEST_F(StepProbeTest, PredictsStepsOfBothKinds) {
  const auto cost = ProbeHashEngine(64, 4096, 512);
  ASSERT_OK(cost.status());
  EXPECT_EQ(cost->samples(), 4);
  cost::StepShape prompt, generated;
  prompt.Add(0, 24, false);
  for (int i = 0; i < 3; ++i) generated.Add(8, 1, true);
  EXPECT_NEAR(cost->Predict(prompt).us, 2000 + 24 * 100, 250);
  EXPECT_NEAR(cost->Predict(generated).us, 2000 + 3 * 100, 250);
}

TEST_F(StepProbeTest, FitsIntoTheSmallestEngine) {
  // One block; two tokens of context; one row a step.
  EXPECT_EQ((*ProbeHashEngine(1, 4096, 512)).samples(), 4);
  EXPECT_EQ((*ProbeHashEngine(64, 2, 512)).samples(), 4);
  EXPECT_EQ((*ProbeHashEngine(64, 4096, 1)).samples(), 4);
  EXPECT_EQ((*ProbeHashEngine(64, 1, 512)).samples(), 0);
}

}  // namespace
}  // namespace tandem::node
