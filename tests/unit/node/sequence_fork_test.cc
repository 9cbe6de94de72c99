// Goal: a fork computes no row that lies in a block of another sequence, and gets the tokens that
// it would get alone, whatever becomes of its parent; so the next turn of a conversation computes
// its new tokens only. A block whose contents are wrong is forked no more; and after any order of
// operations no block is lost or still pinned.
//
// TANDEM_FORK_OPERATIONS=10000000 runs as many operations as it says.
#include "common/node/sequence_fork.h"

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>
#include <vector>

#include "absl/strings/numbers.h"
#include "common/engine/hash/hash_engine.h"
#include "common/node/sequence_scheduler.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

constexpr int kBlockTokens = 8;

engine::HashEngineOptions EngineOptions() {
  engine::HashEngineOptions options;
  options.num_layers = 2;
  options.block_tokens = kBlockTokens;
  options.kv_bytes_per_token_layer = 8;
  options.context_tokens = 100;
  return options;
}

// A scheduler and an engine, stepped by hand.
class Node {
 public:
  explicit Node(int64_t num_blocks, int32_t max_sequences = 8)
      : engine_(*engine::NewHashEngine(EngineOptions())),
        scheduler_({.spec = engine_->spec(),
                    .num_blocks = num_blocks,
                    .max_batch_tokens = 64,
                    .max_sequences = max_sequences}) {
    scheduler_.set_rules({.retry_alone = true});
    EXPECT_OK(engine_->AllocateKv(num_blocks));
  }

  static SequenceInput Input(std::vector<TokenId> prompt, int max_tokens = 20) {
    SequenceInput input;
    input.prompt = std::move(prompt);
    input.stop.max_tokens = max_tokens;
    input.forks_follow = true;
    return input;
  }
  SequenceId Add(SequenceInput input) {
    const auto id = scheduler_.Admit(std::move(input), /*generates=*/true);
    EXPECT_OK(id.status());
    scheduler_.Schedule(*id);
    return *id;
  }
  // One step; every token that it samples is the oracle's, or its block is damaged.
  StepResult Step() {
    const auto slices = scheduler_.PlanStep();
    rows = 0;
    forks = 0;
    for (const PlannedSlice& slice : scheduler_.planned()) {
      rows += slice.num_rows;
      forks += slice.forked_from.has_value() ? 1 : 0;
    }
    if (slices.empty()) return {};
    StepResult step = scheduler_.FinishStep(engine_->Step(slices, [](int) {}));
    for (const StepOutcome& outcome : step.outcomes) {
      if (!outcome.status.ok() || !outcome.sampled) continue;
      const Sequence& sequence = scheduler_.Get(outcome.id);
      EXPECT_EQ(outcome.token.token, engine::HashEngineNextToken(EngineOptions(), sequence.tokens,
                                                                 sequence.input.sampling, 0));
      scheduler_.AppendToken(outcome.id, outcome.token.token);
    }
    return step;
  }
  SequenceScheduler& scheduler() { return scheduler_; }
  engine::Engine& engine() { return *engine_; }

  int64_t rows = 0, forks = 0;  // of the last step

 private:
  std::unique_ptr<engine::Engine> engine_;
  SequenceScheduler scheduler_;
};

std::vector<TokenId> Prompt(int tokens) {
  std::vector<TokenId> prompt(static_cast<size_t>(tokens));
  for (int i = 0; i < tokens; ++i) prompt[static_cast<size_t>(i)] = 40 + i;
  return prompt;
}

TEST(SequenceFork, BeamsThatLeaveAParentComputeOneRowEach) {
  for (const int tokens : {3, 8, 9, 20, 24}) {
    Node node(32);
    const SequenceId parent = node.Add(Node::Input(Prompt(tokens)));
    node.Step();
    node.scheduler().Release(parent);
    for (int child = 0; child < 3; ++child) {
      std::vector<TokenId> prompt = Prompt(tokens);
      prompt.push_back(90 + child);
      node.Add(Node::Input(prompt));
    }
    node.Step();
    EXPECT_EQ(node.rows, 3) << tokens;
    EXPECT_EQ(node.forks, tokens % kBlockTokens == 0 ? 0 : 3) << tokens;
    for (int step = 0; step < 10; ++step) node.Step();
  }
}

TEST(SequenceFork, FollowersShareTheLeadersPromptWhileItGenerates) {
  for (const int tokens : {2, 8, 9, 21, 24}) {
    Node node(64);
    const SequenceId leader = node.Add(Node::Input(Prompt(tokens)));
    for (int step = 0; step < 12; ++step) node.Step();  // its last prompt block is full by now
    const SequenceId follower = node.Add(Node::Input(Prompt(tokens)));
    node.Step();
    EXPECT_EQ(node.rows, 2) << tokens;
    EXPECT_EQ(
        node.scheduler().Get(follower).cached_tokens + node.scheduler().Get(follower).forked_tokens,
        tokens - 1);
    node.scheduler().Release(leader);
    for (int step = 0; step < 5; ++step) node.Step();
    node.scheduler().Release(follower);
    EXPECT_EQ(node.scheduler().block_counts().used, 0);
  }
}

SequenceInput Unmarked(std::vector<TokenId> prompt) {
  SequenceInput input = Node::Input(std::move(prompt));
  input.forks_follow = false;
  return input;
}

TEST(SequenceFork, UnmarkedSequencesNameNothingWhileTheyRun) {
  Node node(32);
  node.Add(Unmarked(Prompt(20)));
  node.Step();
  node.Add(Unmarked(Prompt(20)));
  node.Step();
  EXPECT_EQ(node.forks, 0);
  EXPECT_EQ(node.rows, 1 + 4);
}

TEST(SequenceFork, TheNextTurnComputesItsNewTokensAndTheOneWithoutKv) {
  for (const int answer : {1, 3, 4, 5, 9}) {
    for (const int fresh : {1, 5, 30}) {
      SCOPED_TRACE(::testing::Message() << answer << " tokens answered, " << fresh << " new");
      Node node(64);
      const SequenceId first = node.Add(Unmarked(Prompt(20)));
      for (int step = 0; step < answer; ++step) node.Step();
      std::vector<TokenId> tokens = node.scheduler().Get(first).tokens;
      node.scheduler().Release(first);
      ASSERT_EQ(tokens.size(), 20u + static_cast<size_t>(answer));
      const int64_t with_kv = 20 + answer - 1;
      for (int i = 0; i < fresh; ++i) tokens.push_back(90 + i);
      const SequenceId second = node.Add(Unmarked(tokens));
      node.Step();
      EXPECT_EQ(node.rows, fresh + 1);
      EXPECT_EQ(node.forks, with_kv % kBlockTokens == 0 ? 0 : 1);
      const v1::TokensBySource sources = node.scheduler().Get(second).PromptSources();
      EXPECT_EQ(sources.cached(), with_kv);
      EXPECT_EQ(sources.computed(), fresh + 1);
      node.scheduler().Release(second);
      EXPECT_EQ(node.scheduler().block_counts().used, 0);
    }
  }
}

// Another answer to the same question, and another question after the same answer.
TEST(SequenceFork, RowsAreCopiedUpToTheFirstTokenThatDiffers) {
  Node node(64);
  const SequenceId first = node.Add(Unmarked(Prompt(23)));
  node.Step();
  node.scheduler().Release(first);
  std::vector<TokenId> prompt = Prompt(20);
  prompt.insert(prompt.end(), 30, 7);
  node.Add(Unmarked(prompt));
  node.Step();
  EXPECT_EQ(node.forks, 1);
  EXPECT_EQ(node.rows, 30);
}

TEST(SequenceFork, ScoredPromptsCopyNothing) {
  Node node(64);
  const SequenceId first = node.Add(Unmarked(Prompt(23)));
  node.Step();
  node.scheduler().Release(first);
  SequenceInput scored = Unmarked(Prompt(30));
  scored.prompt_logprobs = 0;
  node.Add(scored);
  node.Step();
  EXPECT_EQ(node.forks, 0);
  EXPECT_EQ(node.rows, 30);
}

TEST(SequenceFork, AnotherSaltFindsNothing) {
  Node node(32);
  node.Add(Node::Input(Prompt(5)));
  node.Step();
  SequenceInput other = Node::Input(Prompt(5));
  other.cache_salt = "other";
  node.Add(other);
  node.Step();
  EXPECT_EQ(node.forks, 0);
}

TEST(SequenceFork, WithoutItsPartTheRowsAreComputed) {
  Node node(/*num_blocks=*/4);
  const SequenceId parent = node.Add(Node::Input(Prompt(5)));
  node.Step();
  node.scheduler().Release(parent);
  const SequenceId large = node.Add(Node::Input(std::vector<TokenId>(25, 7), 1));
  node.scheduler().Release(large);  // it took all blocks
  node.Add(Node::Input(Prompt(6)));
  node.Step();
  EXPECT_EQ(node.forks, 0);
  EXPECT_EQ(node.rows, 6);
}

TEST(SequenceFork, ADamagedBlockIsForkedOnce) {
  Node node(32);
  const SequenceId parent = node.Add(Node::Input(Prompt(20)));
  node.Step();
  const BlockId last = node.scheduler().Get(parent).blocks[2];
  node.scheduler().Release(parent);
  node.engine().arena().Block(1, last)[0] ^= std::byte{1};
  std::vector<TokenId> prompt = Prompt(20);
  prompt.push_back(90);
  const SequenceId child = node.Add(Node::Input(prompt));
  const StepResult step = node.Step();
  ASSERT_EQ(node.forks, 1);
  ASSERT_EQ(step.outcomes.size(), 1u);
  EXPECT_EQ(step.outcomes[0].status.code(), absl::StatusCode::kDataLoss);
  node.scheduler().Release(child);
  node.Add(Node::Input(prompt));
  const StepResult again = node.Step();
  EXPECT_EQ(node.forks, 0);
  EXPECT_OK(again.outcomes[0].status);
  EXPECT_EQ(node.rows, 5);
}

TEST(SequenceFork, ASequenceWithADamagedBlockNamesNoEnd) {
  Node node(32);
  const SequenceId first = node.Add(Unmarked(Prompt(20)));
  node.Step();
  node.engine().arena().Block(1, node.scheduler().Get(first).blocks[2])[0] ^= std::byte{1};
  ASSERT_EQ(node.Step().outcomes[0].status.code(), absl::StatusCode::kDataLoss);
  node.scheduler().Release(first);
  node.Add(Unmarked(Prompt(30)));
  node.Step();
  EXPECT_EQ(node.forks, 0);
  EXPECT_EQ(node.rows, 30 - 16);
}

TEST(SequenceFork, AFailedStepIsTriedAgainWithoutForks) {
  Node node(32);
  const SequenceId parent = node.Add(Node::Input(Prompt(20)));
  node.Step();
  std::vector<TokenId> prompt = Prompt(20);
  prompt.push_back(90);
  const SequenceId child = node.Add(Node::Input(prompt));
  node.scheduler().PlanStep();
  ASSERT_EQ(node.scheduler().planned().size(), 2u);
  node.scheduler().FinishStep(absl::InternalError("planted"));
  for (int step = 0; step < 3; ++step) {
    node.Step();
    EXPECT_EQ(node.forks, 0);
  }
  EXPECT_EQ(node.scheduler().Get(child).forked_tokens, 0);
  for (const SequenceId id : {parent, child}) node.scheduler().Release(id);
  EXPECT_EQ(node.scheduler().block_counts().used, 0);
}

TEST(SequenceFork, ParentAndChildMayLeaveDuringTheStep) {
  Node node(32);
  const SequenceId parent = node.Add(Node::Input(Prompt(20)));
  node.Step();
  std::vector<TokenId> prompt = Prompt(20);
  prompt.push_back(90);
  const SequenceId child = node.Add(Node::Input(prompt));
  const auto slices = node.scheduler().PlanStep();
  ASSERT_TRUE(slices[1].forked_from.has_value());
  node.scheduler().Release(parent);
  node.scheduler().Release(child);
  EXPECT_EQ(node.scheduler().size(), 2);
  node.scheduler().FinishStep(node.engine().Step(slices, [](int) {}));
  EXPECT_EQ(node.scheduler().size(), 0);
  EXPECT_EQ(node.scheduler().block_counts().used, 0);
}

// Random families of sequences in a pool that is too small for them: forks, preemptions, evictions,
// releases in and between steps, failed steps and damaged blocks.
class Families {
 public:
  explicit Families(uint64_t seed)
      : random_(seed),
        node_(static_cast<int64_t>(6 + seed % 20), static_cast<int32_t>(2 + seed % 6)) {}

  void Operate() {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
        return Admit();
      case 3:
        if (!live_.empty()) Release(random_() % live_.size());
        return;
      default:
        return Step();
    }
  }
  void ReleaseAll() {
    while (!live_.empty()) Release(0);
    EXPECT_EQ(node_.scheduler().block_counts().used, 0);
    EXPECT_EQ(node_.scheduler().size(), 0);
  }
  int64_t forks() const { return forks_; }

 private:
  void Release(size_t index) {
    // The next turn goes on from here.
    prompts_.push_back(node_.scheduler().Get(live_[index]).tokens);
    node_.scheduler().Release(live_[index]);
    live_.erase(live_.begin() + static_cast<int64_t>(index));
  }
  // A prompt that begins as an earlier one does, and may go on otherwise.
  void Admit() {
    std::vector<TokenId> prompt;
    if (!prompts_.empty() && random_() % 5 != 0) {
      prompt = prompts_[random_() % prompts_.size()];
      if (random_() % 6 == 0) prompt.resize(1 + random_() % prompt.size());
    }
    const size_t more = prompt.empty() ? 1 + random_() % 12 : random_() % (1 + random_() % 20);
    for (size_t i = 0; i < more; ++i) prompt.push_back(40 + static_cast<TokenId>(random_() % 2));
    if (prompt.size() > 40) return;
    SequenceInput input = Node::Input(prompt, static_cast<int>(1 + random_() % 12));
    input.forks_follow = random_() % 4 != 0;
    const auto id = node_.scheduler().Admit(std::move(input), /*generates=*/true);
    if (!id.ok()) return;
    node_.scheduler().Schedule(*id);
    live_.push_back(*id);
    prompts_.push_back(std::move(prompt));
    while (prompts_.size() > 12) prompts_.erase(prompts_.begin());
  }
  void Step() {
    if (random_() % 40 == 0) return Fail();
    const StepResult step = node_.Step();
    forks_ += node_.forks;
    for (const StepOutcome& outcome : step.outcomes) {
      const Sequence& sequence = node_.scheduler().Get(outcome.id);
      ASSERT_OK(outcome.status);
      const int64_t longest = sequence.prompt_tokens + sequence.input.stop.max_tokens;
      if (static_cast<int64_t>(sequence.tokens.size()) < longest) continue;
      Release(
          static_cast<size_t>(std::find(live_.begin(), live_.end(), outcome.id) - live_.begin()));
    }
  }
  // A step that fails, or whose sequences leave before it ends.
  void Fail() {
    const auto slices = node_.scheduler().PlanStep();
    if (slices.empty()) return;
    if (random_() % 2 == 0) {
      const StepResult step = node_.scheduler().FinishStep(absl::InternalError("planted"));
      for (const StepOutcome& outcome : step.outcomes)
        Release(
            static_cast<size_t>(std::find(live_.begin(), live_.end(), outcome.id) - live_.begin()));
      return;
    }
    while (!live_.empty()) Release(0);
    node_.scheduler().FinishStep(node_.engine().Step(slices, [](int) {}));
  }

  std::mt19937_64 random_;
  Node node_;
  std::vector<SequenceId> live_;
  std::vector<std::vector<TokenId>> prompts_;
  int64_t forks_ = 0;
};

TEST(SequenceFork, FamiliesGetTheOraclesTokensAndLeaveNoBlockBehind) {
  int64_t operations = 40'000;
  if (const char* text = std::getenv("TANDEM_FORK_OPERATIONS"); text != nullptr) {
    ASSERT_TRUE(absl::SimpleAtoi(text, &operations)) << "TANDEM_FORK_OPERATIONS=" << text;
  }
  constexpr int64_t kOperationsOfASeed = 1000;
  const uint64_t first = std::random_device()();
  const auto seeds = static_cast<uint64_t>(operations / kOperationsOfASeed);
  int64_t forks = 0;
  for (uint64_t seed = first; seed < first + seeds; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Families families(seed);
    for (int64_t i = 0; i < kOperationsOfASeed; ++i) families.Operate();
    families.ReleaseAll();
    forks += families.forks();
    if (::testing::Test::HasFailure()) return;
  }
  std::cout << seeds << " seeds from " << first << ", " << forks << " forks\n";
  EXPECT_GT(forks, operations / 1000);
}

}  // namespace
}  // namespace tandem::node
