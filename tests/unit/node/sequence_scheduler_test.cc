// Goal: the scheduler's plans follow from arrival alone: decode rows first, then chunks of prompts
// in order within the budget, slots in order, the youngest preempted first and recomputed before
// those behind it.
#include "common/node/sequence_scheduler.h"

#include <algorithm>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class SequenceSchedulerTest : public ::testing::Test {
 protected:
  static SchedulerOptions Options(int64_t blocks, int64_t batch_tokens, int32_t sequences) {
    return {.spec = (*engine::NewHashEngine({.context_tokens = 1024}))->spec(),
            .num_blocks = blocks,
            .max_batch_tokens = batch_tokens,
            .max_sequences = sequences};
  }
  // A prompt that shares no prefix with another one's.
  static SequenceInput Input(int number, int prompt_tokens, int max_tokens = 50) {
    SequenceInput input;
    input.prompt.assign(prompt_tokens, number);
    input.stop.max_tokens = max_tokens;
    return input;
  }
  static SequenceId Add(SequenceScheduler& scheduler, const SequenceInput& input) {
    const auto id = scheduler.Admit(input, /*generates=*/true);
    EXPECT_OK(id.status());
    scheduler.Schedule(*id);
    return *id;
  }
  // (sequence, first row, rows, sample) of the next step.
  struct Row {
    uint64_t id;
    int64_t first, count;
    bool sample;
    bool operator==(const Row&) const = default;
  };
  static std::vector<Row> Plan(SequenceScheduler& scheduler) {
    scheduler.PlanStep();
    std::vector<Row> rows;
    for (const PlannedSlice& s : scheduler.planned()) {
      rows.push_back({s.id.value(), s.first_row, s.num_rows, s.sample});
    }
    return rows;
  }
  static void Finish(SequenceScheduler& scheduler) {
    const auto sampling = std::count_if(scheduler.planned().begin(), scheduler.planned().end(),
                                        [](const PlannedSlice& slice) { return slice.sample; });
    const StepResult step =
        scheduler.FinishStep(std::vector<engine::SampledToken>(sampling, {.token = 65}));
    EXPECT_OK(step.status);
    for (const StepOutcome& outcome : step.outcomes) {
      if (outcome.sampled) scheduler.AppendToken(outcome.id, outcome.token.token);
    }
  }
};

TEST_F(SequenceSchedulerTest, DecodeRowsFirstThenPromptsInOrderWithinTheBudget) {
  SequenceScheduler scheduler(Options(64, 10, 3));
  Add(scheduler, Input(1, 4));
  EXPECT_EQ(Plan(scheduler), (std::vector<Row>{{1, 0, 4, true}}));
  Finish(scheduler);
  for (const int tokens : {15, 7, 3}) Add(scheduler, Input(tokens, tokens));
  EXPECT_EQ(scheduler.prefill_tokens_waiting(), 25);
  // Sequence 4 has to wait for one of three slots.
  EXPECT_EQ(Plan(scheduler), (std::vector<Row>{{1, 4, 1, true}, {2, 0, 9, false}}));
  Finish(scheduler);
  EXPECT_EQ(Plan(scheduler),
            (std::vector<Row>{{1, 5, 1, true}, {2, 9, 6, true}, {3, 0, 3, false}}));
  scheduler.Release(SequenceId(1));  // takes effect when the step is done
  EXPECT_EQ(scheduler.size(), 4);
  Finish(scheduler);
  EXPECT_EQ(scheduler.size(), 3);
  EXPECT_EQ(Plan(scheduler),
            (std::vector<Row>{{2, 15, 1, true}, {3, 3, 4, true}, {4, 0, 3, true}}));
  Finish(scheduler);
}

TEST_F(SequenceSchedulerTest, AStaticBatchEndsAsAWholeBeforeTheNext) {
  SchedulerOptions options = Options(64, 100, 3);
  options.static_batches = true;
  SequenceScheduler scheduler(options);
  Add(scheduler, Input(1, 4));
  Add(scheduler, Input(2, 4));
  EXPECT_EQ(Plan(scheduler), (std::vector<Row>{{1, 0, 4, true}, {2, 0, 4, true}}));
  Finish(scheduler);
  Add(scheduler, Input(3, 4));  // there is a slot, and it has to wait
  scheduler.Release(SequenceId(1));
  EXPECT_EQ(Plan(scheduler), (std::vector<Row>{{2, 4, 1, true}}));
  Finish(scheduler);
  scheduler.Release(SequenceId(2));
  EXPECT_EQ(Plan(scheduler), (std::vector<Row>{{3, 0, 4, true}}));
  Finish(scheduler);
}

TEST_F(SequenceSchedulerTest, TheYoungestIsPreemptedAndComesBackBeforeAnythingNew) {
  SequenceScheduler scheduler(Options(4, 100, 8));
  Add(scheduler, Input(1, 16, 33));  // two blocks now, three in the end
  Add(scheduler, Input(2, 16, 17));  // two blocks
  Plan(scheduler);
  Finish(scheduler);
  int64_t rows_of_second = 0;
  while (scheduler.preemption_count() == 0) {
    rows_of_second = scheduler.Get(SequenceId(2)).num_computed;
    const std::vector<Row> rows = Plan(scheduler);
    ASSERT_FALSE(rows.empty());
    if (scheduler.preemption_count() == 0) {
      ASSERT_EQ(rows.size(), 2u);
    }
    Finish(scheduler);
  }
  EXPECT_EQ(rows_of_second, 32);
  EXPECT_EQ(scheduler.Get(SequenceId(1)).tokens.size(), 34u);
  EXPECT_EQ(scheduler.Get(SequenceId(2)).tokens.size(), 33u);
  EXPECT_THAT(scheduler.Get(SequenceId(2)).blocks, IsEmpty());
  EXPECT_EQ(scheduler.waiting_count(), 1);
  EXPECT_THAT(
      scheduler.Admit(Input(3, 1, 1), true),
      testing::StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("wait for blocks")));
  scheduler.Release(SequenceId(1));
  // Its first block survived in the cache, the second was evicted: rows 16..32 again, then a
  // sample.
  EXPECT_EQ(Plan(scheduler), (std::vector<Row>{{2, 16, 17, true}}));
  Finish(scheduler);
  EXPECT_EQ(scheduler.Get(SequenceId(2)).tokens.size(), 34u);
  EXPECT_OK(scheduler.Admit(Input(3, 1, 1), true));
}

// It is tried before each step, and must not pass for a use of the blocks that it finds.
TEST_F(SequenceSchedulerTest, APreemptedSequenceThatWaitsDoesNotChangeWhatIsEvicted) {
  SequenceScheduler scheduler(Options(24, 300, 8));
  for (int i = 0; i < 8; ++i) {
    const SequenceId popular = Add(scheduler, Input(1, 33));
    Plan(scheduler);
    Finish(scheduler);
    scheduler.Release(popular);
  }
  const std::vector<kv::BlockHash> hashes = scheduler.HashesOf(Input(1, 33));
  ASSERT_EQ(scheduler.pool().MatchLength(hashes), 2);
  const SequenceId first = Add(scheduler, Input(2, 16, 100));
  const SequenceId second = Add(scheduler, Input(3, 200, 100));
  Plan(scheduler);
  Finish(scheduler);
  // With all of these taken the first one's next block has to be one of the second's.
  const std::vector<BlockId> pinned = scheduler.pool().Match(hashes);
  ASSERT_OK(scheduler.pool().Allocate(scheduler.block_counts().available()).status());
  while (scheduler.preemption_count() == 0) {
    ASSERT_FALSE(Plan(scheduler).empty());
    Finish(scheduler);
  }
  ASSERT_OK(scheduler.pool().Allocate(5).status());
  scheduler.pool().UnpinMatched(pinned);
  for (int i = 0; i < 20; ++i) {
    ASSERT_FALSE(Plan(scheduler).empty());
    Finish(scheduler);
  }
  EXPECT_FALSE(scheduler.Get(first).blocks.empty());
  ASSERT_THAT(scheduler.Get(second).blocks, IsEmpty());
  ASSERT_GE(scheduler.block_counts().cached, 4) << "some of the second one's, too";
  ASSERT_OK(scheduler.pool().Allocate(2).status());
  EXPECT_EQ(scheduler.pool().MatchLength(hashes), 2);
}

// The node that computed the prompt scored it, too. Otherwise each step would be asked for scores
// (which no CUDA graph gives), and a sequence that is preempted would compute its prompt again.
TEST_F(SequenceSchedulerTest, AReceivedPromptIsScored) {
  SequenceScheduler scheduler(Options(8, 100, 8));
  SequenceInput input = Input(1, 40);
  input.prompt_logprobs = 1;
  const auto id = scheduler.Admit(input, /*generates=*/true);
  ASSERT_OK(id.status());
  scheduler.MarkReceived(*id, 40);
  scheduler.AppendToken(*id, 65);
  const auto slices = scheduler.PlanStep();
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].num_new, 1);
  EXPECT_EQ(slices[0].prompt_scores, nullptr);
  EXPECT_EQ(scheduler.Get(*id).unscored(), 0);
}

// Two answers of one request behind a long one that runs out of blocks.
TEST_F(SequenceSchedulerTest, TheSequencesOfARequestArePreemptedTogether) {
  SequenceScheduler scheduler(Options(8, 100, 8));
  Add(scheduler, Input(1, 32, 60));         // three blocks now, six in the end
  SequenceInput member = Input(2, 32, 30);  // three blocks, of which they share one
  member.group = "7/request";
  Add(scheduler, member);
  Plan(scheduler);
  Finish(scheduler);
  Add(scheduler, member);
  while (true) {
    ASSERT_FALSE(Plan(scheduler).empty());
    if (scheduler.preemption_count() > 0) break;
    Finish(scheduler);
  }
  EXPECT_EQ(scheduler.preemption_count(), 2);
  EXPECT_THAT(scheduler.Get(SequenceId(2)).blocks, IsEmpty());
  EXPECT_THAT(scheduler.Get(SequenceId(3)).blocks, IsEmpty());
  EXPECT_EQ(scheduler.block_counts().used, std::ssize(scheduler.Get(SequenceId(1)).blocks));
  Finish(scheduler);
  // All get on to their ends, in their order.
  for (const auto& [id, tokens] : {std::pair(1, 92), {2, 62}, {3, 62}}) {
    while (std::ssize(scheduler.Get(SequenceId(id)).tokens) < tokens) {
      ASSERT_FALSE(Plan(scheduler).empty());
      Finish(scheduler);
    }
    scheduler.Release(SequenceId(id));
  }
  EXPECT_EQ(scheduler.block_counts().used, 0);
}

// The one that lacks a block belongs to the request: it goes on, and only the last gives way.
TEST_F(SequenceSchedulerTest, OfItsOwnRequestANeedySequencePreemptsTheLastAlone) {
  // Two blocks each: the first of them lacks its third, with two others behind it.
  SequenceScheduler scheduler(Options(6, 100, 8));
  for (int number = 1; number <= 3; ++number) {
    SequenceInput member = Input(number, 16, 60);
    member.group = "7/request";
    Add(scheduler, member);
  }
  while (scheduler.preemption_count() == 0) {
    ASSERT_FALSE(Plan(scheduler).empty());
    Finish(scheduler);
  }
  EXPECT_EQ(scheduler.preemption_count(), 1);
  EXPECT_THAT(scheduler.Get(SequenceId(3)).blocks, IsEmpty());
  EXPECT_EQ(scheduler.Get(SequenceId(2)).blocks.empty(), false);
}

TEST_F(SequenceSchedulerTest, AWrongNumberOfTokensFailsTheStepAndSealsNothing) {
  SequenceScheduler scheduler(Options(8, 100, 8));
  Add(scheduler, Input(1, 40));
  Plan(scheduler);
  const StepResult step = scheduler.FinishStep(std::vector<engine::SampledToken>{});
  EXPECT_THAT(step.status, testing::StatusIs(absl::StatusCode::kInternal,
                                             HasSubstr("returned 0 tokens, expected 1")));
  EXPECT_EQ(step.outcomes.size(), 1u);
  EXPECT_THAT(scheduler.SealedHashes(), IsEmpty());
  scheduler.Release(SequenceId(1));
  EXPECT_EQ(scheduler.block_counts().free, 8);
}

TEST_F(SequenceSchedulerTest, OnlyTheSequenceAtFaultFailsWhenAStepDoes) {
  SequenceScheduler scheduler(Options(16, 100, 8));
  scheduler.set_rules({.retry_alone = true});
  for (const int number : {1, 2, 3}) Add(scheduler, Input(number, 20));
  Plan(scheduler);
  Finish(scheduler);
  ASSERT_EQ(Plan(scheduler).size(), 3u);
  EXPECT_THAT(scheduler.FinishStep(absl::DataLossError("block 3")).outcomes, IsEmpty());
  EXPECT_EQ(scheduler.SealedHashes().size(), 3u) << "no sequence is known to be at fault yet";
  for (const uint64_t id : {1, 2, 3}) {
    EXPECT_EQ(Plan(scheduler), (std::vector<Row>{{id, 20, 1, true}}));
    if (id != 2) {
      Finish(scheduler);
      continue;
    }
    const StepResult step = scheduler.FinishStep(absl::DataLossError("block 3"));
    ASSERT_EQ(step.outcomes.size(), 1u);
    EXPECT_EQ(step.outcomes[0].id, SequenceId(2));
    scheduler.Release(SequenceId(2));
  }
  EXPECT_EQ(Plan(scheduler), (std::vector<Row>{{1, 21, 1, true}, {3, 21, 1, true}}));
  Finish(scheduler);
  EXPECT_EQ(scheduler.SealedHashes().size(), 2u);
  EXPECT_EQ(scheduler.Get(Add(scheduler, Input(2, 20))).cached_tokens, 0)
      << "what was wrong must not be found again";
}

TEST_F(SequenceSchedulerTest, ADamagedBlockAndWhatFollowsItAreForgotten) {
  SequenceScheduler scheduler(Options(16, 100, 8));
  for (const int number : {1, 2, 3}) Add(scheduler, Input(number, 40));
  Plan(scheduler);  // 100 rows: the third's come later
  Finish(scheduler);
  ASSERT_EQ(Plan(scheduler).size(), 3u);
  std::vector<engine::SampledToken> tokens(3, {.token = 65});
  tokens[1].damaged = scheduler.Get(SequenceId(2)).blocks[1];
  const StepResult step = scheduler.FinishStep(tokens);
  EXPECT_OK(step.status);
  ASSERT_EQ(step.outcomes.size(), 3u);
  for (const int i : {0, 2}) {
    EXPECT_OK(step.outcomes[i].status);
    EXPECT_TRUE(step.outcomes[i].sampled);
  }
  EXPECT_THAT(step.outcomes[1].status,
              testing::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("does not hold")));
  EXPECT_FALSE(step.outcomes[1].sampled);
  scheduler.Release(SequenceId(2));
  EXPECT_EQ(scheduler.SealedHashes().size(), 5u) << "two of each, less one";
  EXPECT_EQ(scheduler.Get(Add(scheduler, Input(2, 40))).cached_tokens, 16);
}

TEST_F(SequenceSchedulerTest, SequencesWithEqualPrefixesShareBlocks) {
  SequenceScheduler scheduler(Options(8, 100, 8));
  Add(scheduler, Input(1, 40));
  Plan(scheduler);
  Finish(scheduler);
  const SequenceId second = Add(scheduler, Input(1, 40));
  EXPECT_EQ(scheduler.Get(second).cached_tokens, 32);
  EXPECT_EQ(scheduler.Get(second).blocks[1], scheduler.Get(SequenceId(1)).blocks[1]);
  EXPECT_NE(scheduler.Get(second).blocks[2], scheduler.Get(SequenceId(1)).blocks[2]);
  scheduler.Release(SequenceId(1));
  EXPECT_EQ(scheduler.block_counts().cached, 1) << "its end; the second one still holds the rest";
  scheduler.Release(second);
  EXPECT_EQ(scheduler.block_counts().cached, 3);
  SequenceInput other_tenant = Input(1, 40);
  other_tenant.cache_salt = "other";
  EXPECT_EQ(scheduler.Get(Add(scheduler, other_tenant)).cached_tokens, 0);
}

}  // namespace
}  // namespace tandem::node
