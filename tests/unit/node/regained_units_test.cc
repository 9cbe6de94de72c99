// Goal: units that were lost with their creditor are lent again without being computed, as far as
// another node holds their blocks: between two steps, while their rows are being computed, and for
// several losses. What no node holds is computed. The tokens are those of a sequence that lost
// nothing, and nothing is left behind.
#include <functional>
#include <vector>

#include "tests/unit/node/lost_units_fixture.h"

namespace tandem::decode_node {
namespace {

constexpr int64_t kBatch = 8;  // rows of a step: half a block

class RegainedUnitsTest : public LostUnitsTest {
 protected:
  RegainedUnitsTest() : LostUnitsTest(kPool, kBatch) { holder_units_ = 100; }
  void Begin() {
    Send(Answer("r", kPrompt, kAnswer));
    RunUntilLoans(4);
  }
  // Steps until the lost units are there, or `until`. Returns the holders' answers, which did not
  // arrive.
  std::vector<v1::NodeCommand> RunWithoutHolders(const std::function<bool()>& until) {
    std::vector<v1::NodeCommand> late;
    for (int i = 0; i < 1000 && First().rebuild != nullptr && !until(); ++i) {
      RunStep();
      for (const v1::NodeCommand& command : std::exchange(pending_, {})) {
        const bool holds = command.loan_answer().creditor_node_id() == "holder";
        (holds ? late : pending_).push_back(command);
      }
    }
    return late;
  }
  int64_t Regained() const { return resources_->counters().units_regained(); }
  void ExpectRightTokens() {
    RunToEnd("r");
    EXPECT_EQ(tokens_["r"], Expected());
    ExpectAllGone();
  }
};

class RegainedPlaceTest : public RegainedUnitsTest, public ::testing::WithParamInterface<size_t> {};

TEST_P(RegainedPlaceTest, AnotherHolderTakesTheLostCreditorsPlace) {
  Begin();
  const LoanId lost = LoanOf(GetParam());
  const engine::UnitSpan units = First().remote.lent.at(GetParam()).units;
  RowsToLose(GetParam());
  Lose(lost);
  ASSERT_NE(First().rebuild, nullptr);
  const int64_t rows = RunThroughRebuild("r");
  EXPECT_LE(rows, kBatch) << "of the step that ran before the answer";
  EXPECT_EQ(Regained(), units.size());
  EXPECT_TRUE(returned_.contains(lost));
  ASSERT_EQ(lost_wanted_.size(), 1u);
  EXPECT_EQ(lost_wanted_[0].first_unit(), units.first);
  EXPECT_EQ(lost_wanted_[0].units(), units.size());
  EXPECT_EQ(lost_wanted_[0].from_node_id(), creditors_->loans.at(lost).creditor);
  EXPECT_EQ(First().remote.lent.at(GetParam()).units, units);
  ExpectRightTokens();
}

INSTANTIATE_TEST_SUITE_P(Places, RegainedPlaceTest, ::testing::Values(0, 1, 2, 3));

TEST_F(RegainedUnitsTest, WhatNoNodeHoldsIsComputed) {
  Begin();
  size_t place = 0;
  while (place < 4 && UnitsOf(place) < 2) ++place;
  ASSERT_LT(place, 4u) << "no loan of two units";
  holder_units_ = 1;
  const int64_t lost = RowsToLose(place);
  Lose(LoanOf(place));
  const int64_t rows = RunThroughRebuild("r");
  EXPECT_EQ(Regained(), 1);
  EXPECT_GE(rows, lost - kUnitTokens);
  EXPECT_LE(rows, lost - kUnitTokens + kBatch);
  ExpectRightTokens();
}

TEST_F(RegainedUnitsTest, WithoutAHolderAllIsComputed) {
  Begin();
  holder_units_ = 0;
  const int64_t lost = RowsToLose(1);
  Lose(LoanOf(1));
  EXPECT_EQ(RunThroughRebuild("r"), lost);
  EXPECT_EQ(Regained(), 0);
  ExpectRightTokens();
}

// The answer to the later loss comes first, or with the other.
TEST_F(RegainedUnitsTest, SeveralLossesAreRegained) {
  Begin();
  const int64_t units = UnitsOf(0) + UnitsOf(2);
  RowsToLose(0);
  RowsToLose(2);
  const LoanId later = LoanOf(2);
  Lose(LoanOf(0));
  // The second loss is of a loan that the sequence has kept behind the first.
  for (const auto& kept : First().rebuild->later)
    if (kept.loan == later) lost_blocks_[kept.units.first] = creditors_->loans.at(later).blocks;
  Lose(later);
  const int64_t rows = RunThroughRebuild("r");
  EXPECT_LE(rows, 2 * kBatch);
  EXPECT_EQ(Regained(), units);
  ExpectRightTokens();
}

// The holder answers when the rows are computed.
TEST_F(RegainedUnitsTest, AnAnswerThatComesTooLateIsReturned) {
  Begin();
  const int64_t lost = RowsToLose(1);
  Lose(LoanOf(1));
  const std::vector<v1::NodeCommand> late = RunWithoutHolders([] { return false; });
  ASSERT_EQ(First().rebuild, nullptr);
  ASSERT_EQ(late.size(), 1u);
  AnswerLoans(Send(late[0]));
  RunStep();
  EXPECT_TRUE(returned_.contains(LoanId(late[0].loan_answer().loan())));
  EXPECT_EQ(Regained(), 0);
  EXPECT_GT(lost, kBatch);
  ExpectRightTokens();
}

// All loans are lost at once, and there are more than a node asks for at a time.
TEST_F(RegainedUnitsTest, HoldersOfABoundedNumberOfLoansAreLookedFor) {
  constexpr int kLong = 800;
  constexpr size_t kLoans = node::Borrower::kRegainsMax + 2;
  Send(Answer("r", kPrompt, kLong));
  RunUntilLoans(kLoans);
  for (const auto& lent : std::vector(First().remote.lent)) Lose(lent.loan);
  RunStep();
  EXPECT_EQ(lost_wanted_.size(), node::Borrower::kRegainsMax);
  RunToEnd("r", kLong);
  EXPECT_EQ(tokens_["r"], Expected(kPrompt, kLong));
  ExpectAllGone();
}

// The units of two loans are lost, one after the other. Those of the first are computed when its
// holder answers, and those of the second are being computed.
TEST_F(RegainedUnitsTest, UnitsThatWereComputedAreNotRegained) {
  Begin();
  const engine::UnitSpan first = First().remote.lent.at(1).units;
  RowsToLose(1);
  RowsToLose(2);
  const LoanId second = LoanOf(2);
  Lose(LoanOf(1));
  Lose(second);
  lends_ = false;  // so that they stay here
  const std::vector<v1::NodeCommand> late =
      RunWithoutHolders([&] { return First().num_computed > int64_t{first.end} * kUnitTokens; });
  ASSERT_NE(First().rebuild, nullptr);
  ASSERT_EQ(late.size(), 1u);
  const int64_t place = First().num_computed;
  AnswerLoans(Send(late[0]));
  RunStep();
  lends_ = true;
  EXPECT_GE(First().num_computed, place);
  EXPECT_TRUE(returned_.contains(LoanId(late[0].loan_answer().loan())));
  EXPECT_EQ(Regained(), 0);
  ExpectRightTokens();
}

// A holder that has lost a block meanwhile grants less than it says.
TEST_F(RegainedUnitsTest, AHolderThatLacksABlockIsNotUsed) {
  Begin();
  const int64_t lost = RowsToLose(1);
  Lose(LoanOf(1));
  RunStep();
  for (v1::NodeCommand& command : pending_)
    if (command.loan_answer().creditor_node_id() == "holder")
      command.mutable_loan_answer()->set_held_blocks(command.loan_answer().held_blocks() - 1);
  const int64_t rows = RunThroughRebuild("r");
  EXPECT_EQ(Regained(), 0);
  EXPECT_GE(rows + kBatch, lost);
  ExpectRightTokens();
}

// ---- layers with a window: lost rows cannot be computed alone

class WindowedUnitsTest : public LostUnitsTest {
 protected:
  WindowedUnitsTest()
      : LostUnitsTest(Setup{.unit_tokens = kUnitTokens,
                            .context_tokens = 1000,
                            .lend_blocks = kLendable,
                            .blocks = kPool,
                            .batch_tokens = kBatch,
                            .windowed_layers = 1,
                            .window_tokens = 20}) {}
};

TEST_F(WindowedUnitsTest, TheSequenceWaitsForAHolderAndGoesOn) {
  holder_units_ = 100;
  Send(Answer("r", kPrompt, kAnswer));
  RunUntilLoans(4);
  const int64_t tokens = std::ssize(First().tokens), units = UnitsOf(1);
  RowsToLose(1);
  Lose(LoanOf(1));
  EXPECT_EQ(RunStep(), 0) << "it sits out";
  EXPECT_EQ(RunStep(), 1);
  EXPECT_EQ(First().rebuild, nullptr);
  EXPECT_EQ(std::ssize(First().tokens), tokens + 1);
  EXPECT_EQ(resources_->counters().units_regained(), units);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  EXPECT_EQ(rows_, kPrompt + kAnswer - 1) << "nothing is computed twice";
  ExpectAllGone();
}

// No node holds the units, or only some of them.
TEST_F(WindowedUnitsTest, WithoutAHolderOfAllTheSequenceIsComputedAgain) {
  for (const bool some : {false, true}) {
    SCOPED_TRACE(some);
    MakeFresh();
    core_->OnRouterJoined(kRouter, now_);
    engine_->SetRemoteAttention(&*creditors_);
    creditors_->loans.clear();
    pending_.clear();
    tokens_.clear();
    rows_ = 0;
    Send(Answer("r", kPrompt, kAnswer));
    RunUntilLoans(4);
    size_t place = 0;
    while (place < 3 && UnitsOf(place) < 2) ++place;
    holder_units_ = some ? static_cast<int>(UnitsOf(place)) - 1 : 0;
    Lose(LoanOf(place));
    for (int i = 0; i < 5; ++i) RunStep();
    EXPECT_EQ(First().rebuild, nullptr);
    EXPECT_EQ(resources_->counters().units_regained(), 0);
    RunToEnd("r");
    EXPECT_EQ(tokens_["r"], Expected());
    EXPECT_GT(rows_, kPrompt + kAnswer);
    ExpectAllGone();
  }
}

}  // namespace
}  // namespace tandem::decode_node
