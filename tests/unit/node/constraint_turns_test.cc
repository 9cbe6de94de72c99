// Goal: constraints take a bounded amount of the engine thread's work between two steps, however
// costly they are, however many, and however much of an answer was generated elsewhere. Sequences
// without a constraint, or with a cheap one, go on in every step, and each of the others gets its
// tokens, the same ones as alone.
#include "common/node/constraint_turns.h"

#include <algorithm>
#include <iostream>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/hash/hash_engine.h"
#include "common/guided/compile.h"
#include "common/node/sequence_scheduler.h"
#include "tests/testing/status_matchers.h"

namespace tandem::node {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using Progress = ConstraintTurns::Progress;

constexpr uint64_t kStepMax =
    ConstraintTurns::kWorkMax + ConstraintTurns::kPieceMax + 2 * ConstraintTurns::kExcessMax;

// 2,000 tokens of up to 8 letters, and all single bytes.
std::shared_ptr<const guided::Vocabulary> Letters() {
  std::mt19937_64 random(1);
  std::vector<std::string> tokens;
  for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
  while (tokens.size() < 2256) {
    std::string token;
    for (uint64_t i = 1 + random() % 8; i > 0; --i) token += static_cast<char>('a' + random() % 4);
    tokens.push_back(token);
  }
  return std::make_shared<const guided::Vocabulary>(std::move(tokens));
}

std::shared_ptr<guided::Constraint> Constrain(
    const std::string& grammar, const std::shared_ptr<const guided::Vocabulary>& vocabulary) {
  auto program = guided::Compile({.kind = request::GuidedParams::Kind::kGrammar, .text = grammar},
                                 vocabulary->token_bytes_max());
  EXPECT_OK(program.status());
  return std::make_shared<guided::Constraint>(*std::move(program), vocabulary);
}

// Every answer is at a place of its own: it matters where its last letters have an "a", "b" or "c".
// So each mask is computed, and takes some hundred thousand steps.
constexpr char kCostly[] = "root ::= [a-d]* (\"a\" [a-d]{12} | \"b\" [a-d]{13} | \"c\" [a-d]{14})";

class ConstraintTurnsTest : public ::testing::Test {
 protected:
  ConstraintTurnsTest()
      : scheduler_({.spec = (*engine::NewHashEngine({.context_tokens = 20000}))->spec(),
                    .num_blocks = 8192,
                    .max_batch_tokens = 20000,
                    .max_sequences = 64}) {}

  SequenceId Add(const std::shared_ptr<guided::Constraint>& constraint,
                 const std::vector<TokenId>& delivered = {}) {
    SequenceInput input;
    input.prompt = {1, 2, 3};
    input.prompt.insert(input.prompt.end(), delivered.begin(), delivered.end());
    input.delivered_tokens = static_cast<int32_t>(delivered.size());
    input.stop.max_tokens = 10000;
    if (constraint != nullptr) {
      input.matcher.emplace(constraint, guided::Matcher::EndRules{});
      if (delivered.empty()) {
        EXPECT_OK(CheckNextToken(input));
      }
      input.matcher->Defer(delivered);
    }
    const auto id = scheduler_.Admit(std::move(input), /*generates=*/true);
    EXPECT_OK(id.status());
    scheduler_.Schedule(*id);
    return *id;
  }

  // Plans a step, lets `choose` take a token for each sequence of it, and finishes it. Returns the
  // sequences of the step.
  template <typename Choose>
  std::vector<SequenceId> Step(const Choose& choose) {
    settled_ = scheduler_.FollowConstraints();
    most_work_ = std::max(most_work_, scheduler_.constraint_turns().work());
    const auto slices = scheduler_.PlanStep();
    std::vector<SequenceId> ids;
    std::vector<engine::SampledToken> sampled;
    for (size_t i = 0; i < slices.size(); ++i) {
      EXPECT_TRUE(slices[i].sample);
      ids.push_back(scheduler_.planned()[i].id);
      sampled.push_back({.token = choose(ids[i], slices[i].allowed)});
    }
    if (slices.empty()) return ids;
    for (const StepOutcome& outcome : scheduler_.FinishStep(sampled).outcomes) {
      scheduler_.AppendToken(outcome.id, outcome.token.token);
      EXPECT_OK(scheduler_.AdvanceConstraint(outcome.id, outcome.token.token).status());
    }
    most_work_ = std::max(most_work_, scheduler_.constraint_turns().work());
    return ids;
  }

  SequenceScheduler scheduler_;
  std::vector<ConstraintTurns::Settled> settled_;
  uint64_t most_work_ = 0;
};

bool Has(absl::Span<const uint32_t> mask, TokenId token) {
  return ((mask[static_cast<size_t>(token) / 32] >> (token % 32)) & 1) != 0;
}

TEST_F(ConstraintTurnsTest, CostlyMasksHoldUpNoOtherSequence) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  const auto vocabulary = Letters();
  const SequenceId plain = Add(nullptr);
  const SequenceId cheap = Add(Constrain("root ::= [a-h]*", vocabulary));
  std::set<SequenceId> costly;
  for (int i = 0; i < 30; ++i) costly.insert(Add(Constrain(kCostly, vocabulary)));
  std::map<SequenceId, int> steps;
  uint64_t works = 0;
  const auto choose = [&](SequenceId id, absl::Span<const uint32_t> allowed) {
    // Of several letters: the previous mask has not looked far behind them.
    const auto token = static_cast<TokenId>(256 + random() % 2000);
    if (!costly.contains(id)) return token;
    EXPECT_TRUE(Has(allowed, token));
    works += scheduler_.Get(id).constraint_work;
    return token;
  };
  constexpr int kSteps = 120;
  for (int step = 0; step < kSteps; ++step) {
    for (const SequenceId id : Step(choose)) ++steps[id];
    ASSERT_LE(most_work_, kStepMax);
  }
  std::cout << "most work between two steps " << most_work_ << ", of all masks " << works << "\n";
  EXPECT_EQ(steps[plain], kSteps);
  EXPECT_EQ(steps[cheap], kSteps);
  int least = kSteps, most = 0;
  for (const SequenceId id : costly) {
    least = std::min(least, steps[id]);
    most = std::max(most, steps[id]);
  }
  std::cout << least << " to " << most << " steps of the costly ones\n";
  EXPECT_GE(least, 2) << "each is served in its turn";
  EXPECT_LT(most, kSteps) << "not costly enough for this test";
  EXPECT_GT(works, kSteps * ConstraintTurns::kWorkMax) << "not costly enough for this test";
}

TEST_F(ConstraintTurnsTest, AnAnswerFromElsewhereIsReadInPieces) {
  const auto vocabulary = Letters();
  // Each byte takes some thousand steps.
  const char* const grammar = "root ::= ([a-z]* \"a\" [a-z]* \"b\"){80}";
  std::mt19937_64 random(7);
  std::vector<TokenId> answer;
  for (int i = 0; i < 3000; ++i) answer.push_back(static_cast<TokenId>('a' + random() % 8));
  const SequenceId plain = Add(nullptr);
  const SequenceId resumed = Add(Constrain(grammar, vocabulary), answer);
  guided::Matcher reference(Constrain(grammar, vocabulary), {});
  for (const TokenId token : answer) ASSERT_OK(reference.Advance(token));
  int before = 0;
  const auto choose = [](SequenceId, absl::Span<const uint32_t>) { return TokenId{'c'}; };
  for (std::vector<SequenceId> step = Step(choose); step.size() == 1; step = Step(choose)) {
    EXPECT_EQ(step[0], plain);
    ASSERT_LT(++before, 1000);
  }
  std::cout << before << " steps before the answer went on, most work " << most_work_ << "\n";
  EXPECT_GT(before, 3) << "not long enough for this test";
  EXPECT_LE(most_work_, kStepMax);
  EXPECT_FALSE(scheduler_.following_constraints());
  // It went on: its first token was 'c'.
  ASSERT_OK(reference.Advance('c'));
  scheduler_.FollowConstraints();
  const auto slices = scheduler_.PlanStep();
  ASSERT_THAT(slices, SizeIs(2));
  ASSERT_OK_AND_ASSIGN(const auto allowed, reference.Allowed());
  EXPECT_EQ(slices[1].allowed, allowed);
  EXPECT_EQ(scheduler_.planned()[1].id, resumed);
}

// Tables that exist already cost next to nothing, so the length counts: a piece has tens of
// thousands of tokens.
TEST_F(ConstraintTurnsTest, TokensThemselvesCount) {
  const auto constraint = Constrain("root ::= [a-z]*", Letters());
  guided::Matcher matcher(constraint, {});
  const std::vector<TokenId> answer(1'000'000, 'a');
  matcher.Defer(answer);
  int turns = 1;
  for (;; ++turns) {
    uint64_t work = 0;
    ASSERT_OK_AND_ASSIGN(const bool all, matcher.CatchUp(ConstraintTurns::kPieceMax, work));
    EXPECT_LE(work, ConstraintTurns::kPieceMax + ConstraintTurns::kExcessMax);
    if (all) break;
  }
  EXPECT_GE(turns, 1'000'000 / static_cast<int>(ConstraintTurns::kPieceMax));
  EXPECT_OK(matcher.Allowed().status());
}

TEST_F(ConstraintTurnsTest, AnAnswerThatDoesNotFitIsReported) {
  const auto constraint = Constrain("root ::= [a-c]*", Letters());
  const SequenceId id = Add(constraint, {'a', 'b', 'x', 'c'});
  settled_ = scheduler_.FollowConstraints();
  ASSERT_THAT(settled_, SizeIs(1));
  EXPECT_EQ(settled_[0].id, id);
  EXPECT_THAT(settled_[0].progress.status(),
              testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                HasSubstr("token 120 as output 2 (\"x\") breaks the constraint")));
  EXPECT_THAT(scheduler_.PlanStep(), IsEmpty());
}

// The first token may come while the answer before it is still being read. Whether it completes the
// answer is said later.
TEST_F(ConstraintTurnsTest, AVerdictThatComesLateIsReported) {
  const auto vocabulary = Letters();
  const SequenceId whole = Add(Constrain("root ::= [a-c]{5}", vocabulary), {'a', 'b', 'c', 'c'});
  const SequenceId more = Add(Constrain("root ::= [a-c]{6}", vocabulary), {'a', 'b', 'c', 'c'});
  const SequenceId gone = Add(Constrain("root ::= [a-c]{6}", vocabulary), {'x'});
  for (const SequenceId id : {whole, more}) {
    ASSERT_OK_AND_ASSIGN(const Progress progress, scheduler_.AdvanceConstraint(id, 'a'));
    EXPECT_EQ(progress, Progress::kLater);
  }
  scheduler_.Release(gone);
  settled_ = scheduler_.FollowConstraints();
  ASSERT_THAT(settled_, SizeIs(2));
  for (const ConstraintTurns::Settled& settled : settled_) {
    ASSERT_OK(settled.progress.status());
    EXPECT_EQ(*settled.progress, settled.id == whole ? Progress::kWhole : Progress::kReady);
  }
  EXPECT_FALSE(scheduler_.following_constraints());
}

}  // namespace
}  // namespace tandem::node
