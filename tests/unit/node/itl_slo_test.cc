// Goal: with an SLO for the time between tokens, prompts that arrive while sequences generate take
// the time that the SLO leaves and no more, advance in every step whatever the SLO once they are
// due, and keep the whole budget while nothing generates.
#include <algorithm>
#include <vector>

#include "tests/unit/node/itl_slo_fixture.h"

namespace tandem::node {
namespace {

using ItlSloTest = ItlSloFixture;

TEST_F(ItlSloTest, AStormOfPromptsLeavesGeneratedTokensTheirTime) {
  struct Storm {
    absl::Duration p99;
    int64_t steps = 0;
  };
  // Until eight prompts of 2,048 tokens have been computed.
  const auto run = [this](absl::Duration itl_slo) {
    Start(itl_slo, 400);
    StartGenerating();
    for (int i = 0; i < 8; ++i) Add(2048, 1);
    std::vector<absl::Duration> steps;
    while (scheduler_->prefill_tokens_waiting() > 0) steps.push_back(Step());
    std::sort(steps.begin(), steps.end());
    return Storm{steps[steps.size() * 99 / 100], static_cast<int64_t>(steps.size())};
  };
  const Storm unprotected = run(absl::ZeroDuration());
  EXPECT_GT(unprotected.p99, absl::Milliseconds(55));
  const Storm protected_ = run(absl::Milliseconds(20));
  // The noise of one step is within 5 %.
  EXPECT_LE(protected_.p99, absl::Milliseconds(22));
  // Beside 8 ms that generated rows take, at least two thirds of the SLO's rest goes to prompts.
  EXPECT_LE(protected_.steps, 8 * 2048 / 80);
}

// Goal: a sequence's own goal holds while it generates, beside sequences without one and whatever
// the node's flag allows; once it has ended, prompts get the whole budget again.
TEST_F(ItlSloTest, ASequencesOwnGoalHoldsWhileItGenerates) {
  for (const absl::Duration slo : {absl::ZeroDuration(), absl::Milliseconds(45)}) {
    Start(slo, 400);
    StartGenerating();
    const SequenceId urgent = Add(4, 20, absl::Milliseconds(20));
    Step();
    for (int i = 0; i < 8; ++i) Add(2048, 1);
    for (int i = 0; i < 18; ++i) EXPECT_LE(Step(), absl::Milliseconds(22)) << i;
    scheduler_->Release(urgent);
    const absl::Duration after = Step();
    EXPECT_GT(after, absl::Milliseconds(slo > absl::ZeroDuration() ? 35 : 50))
        << absl::FormatDuration(slo);
  }
}

TEST_F(ItlSloTest, PromptsThatAreDueAdvanceByABlockWhateverTheSlo) {
  for (const int trained_steps : {0, 400}) {
    Start(absl::Microseconds(1), trained_steps);
    StartGenerating();
    const SequenceId first = Add(64, 1), second = Add(64, 1);
    for (int64_t step = 1; step <= 4; ++step) {
      Step();
      EXPECT_EQ(scheduler_->Get(first).num_computed, kBlockTokens * step);
      EXPECT_EQ(scheduler_->Get(second).num_computed, 0);
    }
    // Every wait is bounded: each block ahead costs one step.
    for (int step = 0; step < 4; ++step) Step();
    EXPECT_EQ(scheduler_->prefill_tokens_waiting(), 0);
  }
}

TEST_F(ItlSloTest, PromptsHaveTheWholeBudgetWhileNothingGenerates) {
  Start(absl::Microseconds(1), 400);
  const SequenceId id = Add(2048, 2);
  Step();
  EXPECT_EQ(scheduler_->Get(id).num_computed, kBatchTokens);
}

TEST_F(ItlSloTest, APromptThatFitsIsTakenWhole) {
  Start(absl::Seconds(10), 400);
  StartGenerating();
  const SequenceId id = Add(400, 2);
  Step();
  EXPECT_EQ(scheduler_->Get(id).num_computed, 400);
}

}  // namespace
}  // namespace tandem::node
