// Goal: a sequence that loses loans computes the lost units again and nothing else, and then goes
// on where it was, with the tokens of a sequence that lost nothing: for each place of the lost
// loan, for several losses, and beside other sequences. Without room it is computed again as a
// whole; one that ends meanwhile leaves nothing behind.
#include <optional>
#include <set>
#include <vector>

#include "tests/unit/node/lost_units_fixture.h"

namespace tandem::decode_node {
namespace {

TEST_F(LostUnitsTest, WithoutALossTheTokensAreTheSame) {
  Send(Answer("r", kPrompt, kAnswer));
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  EXPECT_EQ(rows_, kPrompt + kAnswer - 1) << "nothing is computed twice";
}

// ---- one loan of four is lost, between two steps or because a step got no answer

class PlaceTest : public LostUnitsTest,
                  public ::testing::WithParamInterface<std::tuple<size_t, bool>> {};

TEST_P(PlaceTest, OnlyTheLostUnitsAreComputedAgain) {
  const auto [place, in_step] = GetParam();
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(4);
  const LoanId lost = LoanOf(place);
  const int64_t lost_rows = RowsToLose(place);
  const int64_t tokens = std::ssize(First().tokens);
  std::set<LoanId> kept;
  for (const auto& lent : First().remote.lent) kept.insert(lent.loan);
  kept.erase(lost);
  const auto local = First().blocks.back();
  int64_t retried = 0;
  if (in_step) {
    creditors_->silent = {creditors_->loans.at(lost).creditor};
    retried = RunStep();
    EXPECT_EQ(std::ssize(First().tokens), tokens) << "what the step sampled is wrong";
    creditors_->silent.clear();
  }
  Lose(lost);
  ASSERT_NE(First().rebuild, nullptr);
  const int64_t rows = RunThroughRebuild("r");
  EXPECT_EQ(retried, in_step ? 1 : 0);
  EXPECT_EQ(rows, lost_rows) << "of " << tokens;
  EXPECT_EQ(std::ssize(First().tokens), tokens + 1) << "the step that ended it generated";
  EXPECT_NE(std::find(First().blocks.begin(), First().blocks.end(), local), First().blocks.end());
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
  EXPECT_TRUE(returned_.contains(lost));
  for (const LoanId loan : kept) EXPECT_FALSE(returned_.contains(loan)) << loan.value();
  std::cout << "rows " << rows << " instead of " << tokens - 1 << "\n";
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  EXPECT_EQ(rows_, kPrompt + kAnswer - 1 + lost_rows + retried);
  ExpectAllGone();
}

INSTANTIATE_TEST_SUITE_P(Places, PlaceTest,
                         ::testing::Combine(::testing::Values(0, 1, 2, 3), ::testing::Bool()));

// ---- several losses

TEST_F(LostUnitsTest, LoansThatAreLostAtOnceAreComputedInOneGo) {
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(4);
  const std::vector<LoanId> lost = {LoanOf(1), LoanOf(3)};
  const int64_t rows = RowsToLose(1) + RowsToLose(3);
  for (const LoanId loan : lost) creditors_->silent.insert(creditors_->loans.at(loan).creditor);
  RunStep();
  for (const LoanId loan : lost) Lose(loan);
  creditors_->silent.clear();
  EXPECT_EQ(RunThroughRebuild("r"), rows);
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

// A loan is lost while the units of another are computed: one after them, one before them, and the
// one that has just taken them over.
TEST_F(LostUnitsTest, ALossDuringTheComputationIsComputedToo) {
  for (const size_t second : {size_t{3}, size_t{0}}) {
    SCOPED_TRACE(second);
    MakeFresh();
    core_->OnRouterJoined(kRouter, now_);
    engine_->SetRemoteAttention(&*creditors_);
    creditors_->loans.clear();
    tokens_.clear();
    pending_.clear();
    Send(Answer("r", kPrompt, kAnswer));
    RunUntilLoans(4);
    const LoanId first_lost = LoanOf(1), second_lost = LoanOf(second);
    // What was computed before the second loss stays in the cache only as long as there is room.
    const int64_t units = 2 * UnitsOf(1) + UnitsOf(second);
    const int64_t rows = rows_;
    Lose(first_lost);
    RunStep();
    ASSERT_NE(First().rebuild, nullptr);
    Lose(second_lost);
    ASSERT_NE(First().rebuild, nullptr);
    RunThroughRebuild("r");
    EXPECT_LE(rows_ - rows - 1, units * kUnitTokens) << "beside one that generates";
    RunToEnd("r");
    EXPECT_EQ(tokens_["r"], Expected());
    ExpectAllGone();
  }
}

TEST_F(LostUnitsTest, ACreditorOfLostUnitsIsLostToo) {
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(4);
  const std::set<LoanId> before = [&] {
    std::set<LoanId> loans;
    for (const auto& lent : First().remote.lent) loans.insert(lent.loan);
    return loans;
  }();
  Lose(LoanOf(0));
  std::optional<LoanId> again;
  for (int i = 0; i < 100 && First().rebuild != nullptr && !again.has_value(); ++i) {
    RunStep();
    for (const auto& lent : First().remote.lent)
      if (!before.contains(lent.loan)) again = lent.loan;
  }
  ASSERT_TRUE(again.has_value());
  Lose(*again);
  ASSERT_NE(First().rebuild, nullptr);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

TEST_F(LostUnitsTest, ALossOfAllLoansKeepsWhatLiesHere) {
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(3);
  const int64_t lent = First().lent_units() * kUnitTokens;
  for (const auto& loan : std::vector(First().remote.lent)) Lose(loan.loan);
  EXPECT_EQ(RunThroughRebuild("r"), lent);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

// ---- without room

TEST_F(LostUnitsTest, IfNoNodeLendsTheSequenceIsComputedAgain) {
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(4);
  lends_ = false;
  Lose(LoanOf(0));
  const absl::Time began = now_;
  for (int i = 0; i < 1000 && !First().remote.lent.empty(); ++i) RunStep();
  for (int i = 0; i < 1000; ++i) {
    if (resources_->scheduler().running_count() == 0 || First().rebuild == nullptr) break;
    RunStep();
  }
  EXPECT_LE(now_ - began, node::Borrower::kRebuildStalledMax + absl::Seconds(1));
  for (int i = 0; i < 3; ++i) RunStep();
  EXPECT_EQ(core_->load().debts_size(), 0) << "all loans are given up";
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
  lends_ = true;
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

// All blocks belong to the sequence, so it gives up some that follow the lost units.
TEST_F(LostUnitsTest, WithoutFreeBlocksItComputesSomeOfItsOwnAgain) {
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(2);
  lends_ = false;
  while (resources_->scheduler().block_counts().available() > 0) RunStep();
  const int64_t lost = UnitsOf(0) * kUnitTokens;
  const int64_t tokens = std::ssize(First().tokens);
  Lose(LoanOf(0));
  RunStep();
  ASSERT_NE(First().rebuild, nullptr);
  lends_ = true;
  const int64_t rows = RunThroughRebuild("r");
  EXPECT_GT(rows + kUnitTokens, lost);
  EXPECT_LT(rows, tokens);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

// ---- the sequence ends, or gives way, meanwhile

TEST_F(LostUnitsTest, OneThatIsAbortedLeavesNothing) {
  for (int steps = 0; steps < 12; ++steps) {
    SCOPED_TRACE(steps);
    MakeFresh();
    core_->OnRouterJoined(kRouter, now_);
    engine_->SetRemoteAttention(&*creditors_);
    creditors_->loans.clear();
    pending_.clear();
    Send(Answer("r", kPrompt, kAnswer));
    RunUntilLoans(4);
    Lose(LoanOf(1));
    for (int i = 0; i < steps; ++i) RunStep();
    // Also while a step runs.
    const auto slices = core_->PlanStep(now_);
    AnswerLoans(resources_->TakeActions());
    AnswerLoans(Send(Abort("r")));
    if (!slices.empty()) core_->OnStepDone(engine_->Step(slices, [](int) {}), now_);
    ExpectAllGone();
  }
}

TEST_F(LostUnitsTest, OneThatIsPreemptedGivesEverythingUp) {
  Send(Answer("older", 60, 300));
  RunStep();
  Send(Answer("r", kPrompt, 200));
  const auto r = [this]() -> const node::Sequence* {
    for (const auto& [order, sequence] : resources_->scheduler().running())
      if (sequence->prompt_tokens == kPrompt) return sequence;
    return nullptr;
  };
  for (int i = 0; i < 400 && (r() == nullptr || r()->remote.lent.size() < 2); ++i) RunStep();
  ASSERT_NE(r(), nullptr);
  ASSERT_GE(r()->remote.lent.size(), 2u);
  const LoanId kept = r()->remote.lent.at(1).loan;
  lends_ = false;
  Lose(r()->remote.lent.at(0).loan);
  ASSERT_NE(r()->rebuild, nullptr);
  const int64_t preempted = resources_->scheduler().preemption_count();
  while (r() != nullptr && r()->rebuild != nullptr) {
    ASSERT_EQ(resources_->scheduler().preemption_count(), preempted);
    RunStep();
  }
  EXPECT_EQ(resources_->scheduler().preemption_count(), preempted + 1);
  EXPECT_EQ(resources_->scheduler().rebuilds().done, 0);
  RunStep();
  EXPECT_TRUE(returned_.contains(kept));
  lends_ = true;
  RunToEnd("r", 200);
  RunToEnd("older", 300);
  EXPECT_EQ(tokens_["r"], Expected(kPrompt, 200));
  EXPECT_EQ(tokens_["older"], Expected(60, 300));
  ExpectAllGone();
}

// The others go on while it computes.
TEST_F(LostUnitsTest, OtherSequencesGoOn) {
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(4);
  Send(Answer("other", 20, 60));
  for (int i = 0; i < 5; ++i) RunStep();
  const auto tokens = std::ssize(tokens_["other"]);
  ASSERT_GT(tokens, 0);
  Lose(LoanOf(2));
  int64_t steps = 0;
  for (; steps < 100 && First().rebuild != nullptr; ++steps) RunStep();
  EXPECT_GE(std::ssize(tokens_["other"]), tokens + steps);
  RunToEnd("other", 60);
  RunToEnd("r");
  EXPECT_EQ(tokens_["other"], Expected(20, 60));
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

// A recall ends like a loss when no other node takes the units.
TEST_F(LostUnitsTest, ARecalledLoanThatNobodyTakesIsComputedAgain) {
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(4);
  const int64_t lost_rows = RowsToLose(1);
  const int64_t rows = rows_;
  const auto tokens = std::ssize(tokens_["r"]);
  const LoanId recalled = LoanOf(1), later = LoanOf(2);
  Send(lending::LoanRecalled{recalled});
  lends_ = false;
  for (int i = 0; i < 5 && First().rebuild == nullptr; ++i) RunStep();
  ASSERT_NE(First().rebuild, nullptr);
  lends_ = true;
  const auto& kept = First().rebuild->later;
  ASSERT_EQ(kept.size(), 2u);
  EXPECT_EQ(kept.front().loan, later);
  RunThroughRebuild("r");
  EXPECT_EQ(rows_ - rows - (std::ssize(tokens_["r"]) - tokens), lost_rows);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

// ---- with room

class WithRoomTest : public LostUnitsTest {
 protected:
  WithRoomTest() : LostUnitsTest(/*blocks=*/44) {}
};

// Nothing is short of memory any more, but a loan follows the lost units.
TEST_F(WithRoomTest, LostUnitsAreLentAgainBeforeALoanFollows) {
  Send(Answer("r", kPrompt, kAnswer));
  RunStep();
  v1::NodeCommand hog = Answer("hog", 1, 280);
  v1::SequenceSpec& sequence = *hog.mutable_start_decode()->mutable_sequence();
  for (int i = 0; i < 400; ++i) sequence.add_prompt(7 * i % 200);
  sequence.set_prompt_logprobs(0);  // so it cannot lend
  Send(hog);
  RunUntilLoans(3);
  Send(Abort("hog"));
  const LoanId later = LoanOf(2);
  const int64_t lost_rows = RowsToLose(0);
  Lose(LoanOf(0));
  const absl::Time began = now_;
  EXPECT_EQ(RunThroughRebuild("r"), lost_rows);
  EXPECT_LT(now_ - began, absl::Seconds(1));
  EXPECT_FALSE(returned_.contains(later));
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
}

// ---- the cache

TEST_F(LostUnitsTest, WhatTheCacheStillHasIsNotComputed) {
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(4);
  Lose(LoanOf(3));  // it has just been lent
  EXPECT_EQ(RunThroughRebuild("r"), 0);
  EXPECT_EQ(resources_->scheduler().rebuilds().done, 1);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

}  // namespace
}  // namespace tandem::decode_node
