// Goal: a step whose goal leaves room for less than a block takes those few rows of prompts, or
// none, while every prompt has time left until its first token is due. Each waits for a bounded
// time only, whatever the clock says and however many others come; no step is without rows.
#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/node/prompt_chunk.h"
#include "tests/unit/node/itl_slo_fixture.h"

namespace tandem::node {
namespace {

class PromptWaitTest : public ItlSloFixture {
 protected:
  // Eight generated rows take 7.2 ms and more as their sequences grow; a block of 16 rows 1.6 ms.
  static constexpr absl::Duration kRoomForAFew = absl::Microseconds(8200);
  static constexpr absl::Duration kRoomForNone = absl::Milliseconds(5);

  SequenceId AddDue(absl::Duration within, int64_t prompt_tokens = 512, int max_tokens = 1) {
    SequenceInput input = Input(prompt_tokens, max_tokens);
    input.first_token_within = within;
    return Admit(std::move(input));
  }
  // Steps until the next one takes a block of prompts; returns how long that takes.
  absl::Duration UntilABlock() {
    const absl::Time start = now_;
    for (int i = 0; i < 100'000; ++i) {
      const absl::Time planned = now_;
      Step();
      if (scheduler_->planned_shape().prompt_rows >= kBlockTokens) return planned - start;
    }
    ADD_FAILURE() << "no block in 100,000 steps";
    return absl::InfiniteDuration();
  }
  // What a step with a block takes, for each of its rows.
  static constexpr absl::Duration kRow = absl::Microseconds(600);
};

TEST_F(PromptWaitTest, WhatFitsIsTakenAndNoMore) {
  Start(kRoomForAFew, 400);
  StartGenerating();
  const SequenceId id = AddDue(absl::Seconds(20));
  for (int i = 0; i < 20; ++i) {
    EXPECT_LE(Step(), 1.1 * kRoomForAFew) << i;
    EXPECT_LT(scheduler_->planned_shape().prompt_rows, kBlockTokens) << i;
  }
  EXPECT_GE(scheduler_->Get(id).num_computed, 20);
  Start(kRoomForNone, 400);
  StartGenerating();
  const SequenceId none = AddDue(absl::Seconds(20));
  for (int i = 0; i < 20; ++i) Step();
  EXPECT_EQ(scheduler_->Get(none).num_computed, 0);
}

TEST_F(PromptWaitTest, APromptWaitsForHalfOfItsTimeLessWhatItTakes) {
  constexpr int64_t kTokens = 512;
  const std::vector<std::pair<absl::Duration, absl::Duration>> waits = {
      {absl::Seconds(8), absl::Seconds(4)},
      {absl::InfiniteDuration(), kWaitWithoutDue},
      // As far off as a router can say, and beyond what counts.
      {ParseFirstTokenDue(std::numeric_limits<int64_t>::max()), request::kDueMax / 2},
      {request::kDueMax + absl::Seconds(1), request::kDueMax / 2},
  };
  for (const auto& [due, wait] : waits) {
    Start(kRoomForNone, 400);
    StartGenerating();
    AddDue(due, kTokens);
    const absl::Duration waited = UntilABlock();
    EXPECT_LE(waited, wait) << due;
    EXPECT_GE(waited, wait - kTokens * kRow * 1.5) << due;
    // From then on a block a step, to its end.
    for (int64_t computed = 2 * kBlockTokens; computed <= kTokens; computed += kBlockTokens) Step();
    EXPECT_EQ(scheduler_->prefill_tokens_waiting(), 0) << due;
  }
}

TEST_F(PromptWaitTest, WhatIsDueDoesNotWait) {
  for (const absl::Duration due :
       {absl::ZeroDuration(), absl::Microseconds(1), absl::Seconds(-1)}) {
    Start(kRoomForNone, 400);
    StartGenerating();
    AddDue(due);
    EXPECT_EQ(UntilABlock(), absl::ZeroDuration()) << due;
  }
}

TEST_F(PromptWaitTest, OneThatIsDueSoonLetsThoseBeforeItWaitNoLonger) {
  Start(kRoomForNone, 400);
  StartGenerating();
  SequenceInput first = Input(512, 1);
  first.priority = -20;
  first.first_token_within = absl::Seconds(20);
  const SequenceId id = Admit(std::move(first));
  for (int i = 0; i < 10; ++i) Step();
  EXPECT_EQ(scheduler_->Get(id).num_computed, 0);
  const SequenceId urgent = AddDue(absl::Milliseconds(100), 64);
  Step();
  EXPECT_EQ(scheduler_->Get(id).num_computed, kBlockTokens) << "it is before the urgent one";
  EXPECT_EQ(scheduler_->Get(urgent).num_computed, 0);
}

TEST_F(PromptWaitTest, AnAnswerThatHasBegunDoesNotWait) {
  Start(kRoomForNone, 400);
  StartGenerating();
  SequenceInput input = Input(512, 200);
  input.delivered_tokens = 100;
  input.first_token_within = absl::Seconds(20);
  Admit(std::move(input));
  EXPECT_EQ(UntilABlock(), absl::ZeroDuration());
}

TEST_F(PromptWaitTest, NobodyWaitsWhileNothingGenerates) {
  Start(kRoomForNone, 400);
  StartGenerating(20);
  const SequenceId id = AddDue(absl::Seconds(20));
  for (int i = 0; i < 19; ++i) Step();
  EXPECT_EQ(scheduler_->Get(id).num_computed, 0);
  for (uint64_t i = 1; i <= 8; ++i) scheduler_->Release(SequenceId(i));
  Step();
  EXPECT_EQ(scheduler_->Get(id).num_computed, kBatchTokens);
}

TEST_F(PromptWaitTest, AClockThatStandsStillOrJumpsBackEndsTheWaitAfterSomeSteps) {
  for (const absl::Duration jump : {absl::ZeroDuration(), absl::Hours(1)}) {
    Start(kRoomForNone, 400);
    StartGenerating(8000);
    const SequenceId id = AddDue(absl::Seconds(20));
    const absl::Time then = now_ - jump;
    int32_t steps = 0;
    for (; scheduler_->Get(id).num_computed == 0; ++steps) {
      ASSERT_LE(steps, kStepsPassedMax) << jump;
      now_ = then;
      Step();
    }
    EXPECT_EQ(steps, kStepsPassedMax + 1) << jump;
  }
}

TEST_F(PromptWaitTest, WithoutAModelNobodyWaits) {
  Start(kRoomForNone, 0);
  for (int i = 0; i < 8; ++i) Add(4, 4000);
  EXPECT_FALSE(scheduler_->PlanStep(now_).empty());
  EXPECT_OK(scheduler_->FinishStep(std::vector<engine::SampledToken>(8, {.token = 65})).status);
  for (uint64_t i = 1; i <= 8; ++i) scheduler_->AppendToken(SequenceId(i), 65);
  const SequenceId id = AddDue(absl::Seconds(20));
  EXPECT_FALSE(scheduler_->PlanStep(now_).empty());
  EXPECT_OK(scheduler_->FinishStep(std::vector<engine::SampledToken>(8, {.token = 65})).status);
  EXPECT_EQ(scheduler_->Get(id).num_computed, kBlockTokens);
}

// Prompts with any due time arrive for ever, faster than they are computed. Whenever one of them
// has waited for as long as it may, each step computes a block, of those that are before it first.
TEST_F(PromptWaitTest, InAFloodEachPromptAdvancesWithinItsBound) {
  Start(kRoomForNone, 400);
  StartGenerating(8000);
  struct Waiting {
    SequenceId id;
    absl::Time latest;
  };
  std::vector<Waiting> waiting;
  absl::Time next = now_;
  int64_t done = 0, forced = 0, passed = 0;
  for (int step = 0; step < 3000; ++step) {
    for (; next <= now_ && waiting.size() < 40; next += absl::Milliseconds(80)) {
      const bool due = random_->Below(4) != 0;
      const absl::Duration within =
          due ? absl::Milliseconds(1 + random_->Below(20'000)) : absl::InfiniteDuration();
      waiting.push_back({AddDue(within, 32 + static_cast<int64_t>(random_->Below(96))),
                         now_ + (due ? within / 2 : kWaitWithoutDue)});
    }
    const bool late = std::any_of(waiting.begin(), waiting.end(),
                                  [&](const Waiting& w) { return w.latest < now_; });
    Step();
    const int64_t rows = scheduler_->planned_shape().prompt_rows;
    const size_t ended = std::erase_if(waiting, [&](const Waiting& w) {
      const Sequence& sequence = scheduler_->Get(w.id);
      if (sequence.num_computed < sequence.prompt_tokens) return false;
      scheduler_->Release(w.id);
      return true;
    });
    done += static_cast<int64_t>(ended);
    if (late) {
      ++forced;
      // The end of a prompt may be less than a block.
      EXPECT_TRUE(rows >= kBlockTokens || ended > 0) << rows << " rows in step " << step;
    } else {
      passed += rows == 0;
    }
  }
  EXPECT_GT(done, 100);
  EXPECT_GT(forced, 100);
  EXPECT_GT(passed, 10);
}

}  // namespace
}  // namespace tandem::node
