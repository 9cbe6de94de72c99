// A scheduler with a step goal in virtual time: steps take what a cost model with known
// coefficients says, and 5 % of noise. Thread safety: none.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/node/sequence_scheduler.h"
#include "common/runtime/random.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {

class ItlSloFixture : public ::testing::Test {
 protected:
  static constexpr int64_t kBlockTokens = 16, kBatchTokens = 512;
  static constexpr uint64_t kSeed = 20261124;

  ItlSloFixture() { RecordProperty("seed", static_cast<int>(kSeed)); }

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

  // A prompt that arrives now, and is due at once: it does not wait for steps that have room.
  SequenceId Add(int64_t prompt_tokens, int max_tokens,
                 absl::Duration step_goal = absl::InfiniteDuration()) {
    SequenceInput input = Input(prompt_tokens, max_tokens);
    input.step_goal = step_goal;
    input.first_token_within = absl::Microseconds(1);
    return Admit(std::move(input));
  }
  SequenceInput Input(int64_t prompt_tokens, int max_tokens) {
    SequenceInput input;
    input.prompt.assign(prompt_tokens, ++prompts_);
    input.stop.max_tokens = max_tokens;
    input.arrived = now_;
    return input;
  }
  SequenceId Admit(SequenceInput input) {
    const auto id = scheduler_->Admit(std::move(input), /*generates=*/true);
    EXPECT_OK(id.status());
    scheduler_->Schedule(*id);
    return *id;
  }
  // Runs a step in virtual time; returns what it took.
  absl::Duration Step() {
    EXPECT_FALSE(scheduler_->PlanStep(now_).empty());
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
  // Eight sequences that generate `tokens`.
  void StartGenerating(int tokens = 4000) {
    for (int i = 0; i < 8; ++i) Add(4, tokens);
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

}  // namespace tandem::node
