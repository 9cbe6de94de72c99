// Goal: a node that has computed nothing but a few small steps predicts its first requests' steps,
// and the probe fits into the smallest engine.
#include "common/node/step_probe.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "common/engine/hash/hash_engine.h"
#include "common/runtime/waiter.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

// Time passes only while the hash engine waits: its own work takes none. The steps of `late` (the
// first is 0) take 50 ms more.
class VirtualTime final : public Clock, public Waiter {
 public:
  explicit VirtualTime(std::set<int> late = {}) : late_(std::move(late)) {}
  absl::Time Now() const override { return now_; }
  void Wait(absl::Duration duration) override {
    now_ += duration;
    if (late_.contains(steps_++)) now_ += absl::Milliseconds(50);
  }
  int steps() const { return steps_; }

 private:
  const std::set<int> late_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  int steps_ = 0;
};

absl::StatusOr<cost::StepCost> Probe(VirtualTime& time, int64_t blocks, int32_t context_tokens,
                                     int64_t max_batch_tokens,
                                     absl::Duration step_time = absl::Milliseconds(2)) {
  const auto engine = engine::NewHashEngine({.context_tokens = context_tokens,
                                             .step_time = step_time,
                                             .row_time = absl::Microseconds(100)},
                                            time, time);
  EXPECT_OK(engine.status());
  EXPECT_OK((*engine)->AllocateKv(blocks));
  return ProbeStepCost(**engine, max_batch_tokens, time);
}

absl::StatusOr<cost::StepCost> ProbeHashEngine(int64_t blocks, int32_t context_tokens,
                                               int64_t max_batch_tokens) {
  VirtualTime time;
  return Probe(time, blocks, context_tokens, max_batch_tokens);
}

double PromptUs(const cost::StepCost& cost) {
  cost::StepShape prompt;
  prompt.Add(0, 24, false);
  return cost.Predict(prompt).us;
}
double GeneratedUs(const cost::StepCost& cost) {
  cost::StepShape generated;
  for (int i = 0; i < 3; ++i) generated.Add(8, 1, true);
  return cost.Predict(generated).us;
}

TEST(StepProbe, PredictsStepsOfBothKinds) {
  const auto cost = ProbeHashEngine(64, 4096, 512);
  ASSERT_OK(cost.status());
  EXPECT_EQ(cost->samples(), 4);
  EXPECT_NEAR(PromptUs(*cost), 2000 + 24 * 100, 250);
  EXPECT_NEAR(GeneratedUs(*cost), 2000 + 3 * 100, 250);
}

// A warm-up, then rounds of four steps: any step of two rounds may be late.
TEST(StepProbe, StepsThatTheMachineDelaysChangeNothing) {
  VirtualTime quiet;
  const auto expected = Probe(quiet, 64, 4096, 512);
  ASSERT_OK(expected.status());
  EXPECT_EQ(quiet.steps(), 1 + 8 * 4);
  for (int step = 0; step < 4; ++step) {
    VirtualTime busy({0, 1 + step, 5 + step});
    const auto cost = Probe(busy, 64, 4096, 512);
    ASSERT_OK(cost.status());
    EXPECT_EQ(cost->samples(), 4);
    EXPECT_DOUBLE_EQ(PromptUs(*cost), PromptUs(*expected)) << step;
    EXPECT_DOUBLE_EQ(GeneratedUs(*cost), GeneratedUs(*expected)) << step;
  }
}

// Every round of the large prompts' step is late: a prompt's row costs no more than a step.
TEST(StepProbe, APromptsRowCostsNoMoreThanAStepOfOneRow) {
  std::set<int> late;
  for (int round = 0; round < 8; ++round) late.insert(2 + 4 * round);
  VirtualTime busy(late);
  const auto cost = Probe(busy, 64, 4096, 512, absl::Microseconds(100));
  ASSERT_OK(cost.status());
  // A step of one row takes 0.2 ms, 24 prompt rows 2.5 ms; the late step said about 40.
  EXPECT_LT(PromptUs(*cost), 24 * 200 * 1.1);
  EXPECT_GT(PromptUs(*cost), 100 + 24 * 100);
  EXPECT_NEAR(GeneratedUs(*cost), 400, 100);
}

// Steps that take long are probed once: nodes are to start soon.
TEST(StepProbe, ALargeModelIsProbedOnce) {
  VirtualTime time;
  ASSERT_OK(Probe(time, 64, 4096, 512, absl::Milliseconds(100)).status());
  EXPECT_EQ(time.steps(), 1 + 4);
}

TEST(StepProbe, FitsIntoTheSmallestEngine) {
  // One block; two tokens of context; one row a step.
  EXPECT_EQ((*ProbeHashEngine(1, 4096, 512)).samples(), 4);
  EXPECT_EQ((*ProbeHashEngine(64, 2, 512)).samples(), 4);
  EXPECT_EQ((*ProbeHashEngine(64, 4096, 1)).samples(), 4);
  EXPECT_EQ((*ProbeHashEngine(64, 1, 512)).samples(), 0);
}

}  // namespace
}  // namespace tandem::node
