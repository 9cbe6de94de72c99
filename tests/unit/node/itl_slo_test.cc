// Goal: with an SLO for the time between tokens, prompts that arrive while sequences generate take
// the time that the SLO leaves and no more, advance in every step whatever the SLO, and keep the
// whole budget while nothing generates.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/node/sequence_scheduler.h"
#include "common/runtime/random.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

constexpr int64_t kBlockTokens = 16, kBatchTokens = 512;
constexpr uint64_t kSeed = 20261124;

class ItlSloTest : public ::testing::Test {
 protected:
  ItlSloTest() { RecordProperty("seed", static_cast<int>(kSeed)); }

  // A scheduler whose cost model has seen `trained_steps` of the truth.
  void Start(absl::Duration itl_slo, int trained_steps) {
    SchedulerOptions options{
        .spec = (*engine::NewHashEngine({.block_tokens = kBlockTokens, .context_tokens = 8192}))
                    ->spec(),
        .num_blocks = 8192,
        .max_batch_tokens = kBatchTokens,
        .max_sequences = 64,
        .itl_slo = itl_slo};
    for (int i = 0; i < trained_steps; ++i) {
      cost::StepShape shape;
      for (uint64_t j = 0; j < 1 + random_->Below(16); ++j)
        shape.Add(static_cast<int64_t>(random_->Below(2048)), 1, true);
      if (i % 2 == 0)
        shape.Add(static_cast<int64_t>(random_->Below(2048)),
                  2 + static_cast<int64_t>(random_->Below(500)), false);
      options.step_cost.Observe(shape, Truth(shape));
    }
    scheduler_.emplace(options);
  }
  double Truth(const cost::StepShape& shape) const { return truth_.Predict(shape).us; }

  SequenceId Add(int64_t prompt_tokens, int max_tokens,
                 absl::Duration step_goal = absl::InfiniteDuration()) {
    SequenceInput input;
    input.step_goal = step_goal;
    input.prompt.assign(prompt_tokens, ++prompts_);
    input.stop.max_tokens = max_tokens;
    const auto id = scheduler_->Admit(input, /*generates=*/true);
    EXPECT_OK(id.status());
    scheduler_->Schedule(*id);
    return *id;
  }
  // Runs a step in virtual time; returns what it took.
  absl::Duration Step() {
    EXPECT_FALSE(scheduler_->PlanStep().empty());
    const cost::StepShape shape = scheduler_->planned_shape();
    scheduler_->meter().Start(shape, now_);
    const double noise = 0.95 + 0.1 * static_cast<double>(random_->Below(1000)) / 1000;
    const absl::Duration time = absl::Microseconds(Truth(shape) * noise);
    now_ += time;
    scheduler_->meter().Stop(true, now_);
    const StepResult step = scheduler_->FinishStep(
        std::vector<engine::SampledToken>(shape.sampled_rows, {.token = 65}));
    EXPECT_OK(step.status);
    for (const StepOutcome& outcome : step.outcomes)
      if (outcome.sampled) scheduler_->AppendToken(outcome.id, outcome.token.token);
    return time;
  }
  // Eight sequences that generate.
  void StartGenerating() {
    for (int i = 0; i < 8; ++i) Add(4, 4000);
    Step();
  }

  // A step of eight generated rows takes 7.2 ms beside attention, a prompt's row 0.1 ms.
  const cost::StepProfile truth_{.step_us = 4000,
                                 .prompt_row_us = 100,
                                 .prompt_attended_us = 0.02,
                                 .generated_row_us = 300,
                                 .generated_attended_us = 0.1,
                                 .sampled_row_us = 100};
  const std::unique_ptr<Random> random_ = NewSeededRandom(kSeed);
  std::optional<SequenceScheduler> scheduler_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
  TokenId prompts_ = 100;
};

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

TEST_F(ItlSloTest, PromptsAdvanceByABlockWhateverTheSlo) {
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
