// Goal: a sequence whose creditor is late sits out until the creditor has answered or is lost. Then
// it computes the same rows again: nothing that it has lent is lost meanwhile, and no token
// changes. Other sequences go on.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/node/lost_units_fixture.h"

namespace tandem::decode_node {
namespace {

class LateCreditorsTest : public LostUnitsTest {
 protected:
  LateCreditorsTest() : LostUnitsTest(/*blocks=*/12) {}
  LateCreditorsTest(int64_t blocks, int64_t batch_tokens) : LostUnitsTest(blocks, batch_tokens) {}
  // "r" has lent `loans` times.
  void BeginWithLoans(size_t loans) {
    Send(Answer("r", kPrompt, kAnswer));
    RunUntilLoans(loans);
  }
  std::string CreditorOf(LoanId loan) const { return creditors_->loans.at(loan).creditor; }
  // A step in which the creditor of this loan does not answer in time.
  void RunLateStep(LoanId loan) {
    creditors_->late = {CreditorOf(loan)};
    const auto tokens = std::ssize(tokens_["r"]);
    RunStep();
    EXPECT_EQ(std::ssize(tokens_["r"]), tokens) << "its row is wrong";
  }
  void Answered(LoanId loan) {
    creditors_->late.clear();
    AnswerLoans(Send(lending::CreditorAnswers{{NodeId(CreditorOf(loan)), Incarnation()}}));
  }
  int64_t postponed() const { return resources_->scheduler().postponed(); }
};

TEST_F(LateCreditorsTest, ASequenceSitsOutUntilItsCreditorHasAnswered) {
  BeginWithLoans(3);
  const auto lent = First().remote.lent.size();
  RunLateStep(LoanOf(1));
  EXPECT_EQ(postponed(), 1);
  const auto tokens = std::ssize(tokens_["r"]);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(RunStep(), 0) << "it is asked for nothing meanwhile";
  EXPECT_EQ(std::ssize(tokens_["r"]), tokens);
  Answered(LoanOf(1));
  EXPECT_EQ(RunStep(), 1) << "the row that failed";
  EXPECT_EQ(std::ssize(tokens_["r"]), tokens + 1);
  EXPECT_EQ(First().remote.lent.size(), lent);
  EXPECT_EQ(resources_->counters().loans_lost(), 0);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  EXPECT_EQ(postponed(), 1);
  ExpectAllGone();
}

TEST_F(LateCreditorsTest, OtherSequencesGoOnMeanwhile) {
  BeginWithLoans(2);
  Send(Answer("other", 10, 12));
  for (int i = 0; i < 50 && tokens_["other"].empty(); ++i) RunStep();
  RunLateStep(LoanOf(0));
  const auto tokens = std::ssize(tokens_["r"]);
  RunToEnd("other", 12);
  EXPECT_EQ(std::ssize(tokens_["r"]), tokens);
  Answered(LoanOf(0));
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

TEST_F(LateCreditorsTest, ALateCreditorThatIsLostCostsItsOwnUnits) {
  BeginWithLoans(3);
  const LoanId late = LoanOf(1);
  const int64_t units = UnitsOf(1);
  RowsToLose(1);
  RunLateStep(late);
  creditors_->late.clear();
  Lose(late);
  EXPECT_EQ(RunThroughRebuild("r"), units * kUnitTokens);
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

// One creditor is late and another one lost, in the same step.
TEST_F(LateCreditorsTest, LostUnitsAreComputedAgainThoughAnotherCreditorIsLate) {
  BeginWithLoans(3);
  const LoanId late = LoanOf(0), lost = LoanOf(2);
  creditors_->silent = {CreditorOf(lost)};
  RunLateStep(late);
  creditors_->silent.clear();
  EXPECT_NE(First().rebuild, nullptr);
  for (int i = 0; i < 20; ++i) RunStep();  // it asks the late one, and sits out
  EXPECT_TRUE(First().skips_step());
  Answered(late);
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
  ExpectAllGone();
}

// The late creditor recalls its loan, or another one takes it over: neither keeps "r" waiting.
TEST_F(LateCreditorsTest, AMovedLoanIsAskedAboutAtItsNewCreditor) {
  BeginWithLoans(2);
  const LoanId late = LoanOf(0);
  RunLateStep(late);
  for (int i = 0; i < 3; ++i) RunStep();
  EXPECT_TRUE(First().skips_step());
  const LoanId moved(1000);
  creditors_->loans[moved] = {.creditor = "new", .blocks = creditors_->loans.at(late).blocks};
  resources_->scheduler().MoveLoan(First().id, late, moved);
  EXPECT_FALSE(First().skips_step());
  EXPECT_EQ(RunStep(), 1);
}

TEST_F(LateCreditorsTest, OneThatIsAbortedWhileItsCreditorIsLateLeavesNothing) {
  BeginWithLoans(3);
  const LoanId late = LoanOf(1);
  RunLateStep(late);
  AnswerLoans(Send(Abort("r")));
  AnswerLoans(Send(lending::CreditorAnswers{{NodeId(CreditorOf(late)), Incarnation()}}));
  ExpectAllGone();
}

TEST_F(LateCreditorsTest, OneThatIsPreemptedComesBackAndIsComputed) {
  BeginWithLoans(2);
  const LoanId late = LoanOf(0);
  RunLateStep(late);
  creditors_->late.clear();
  resources_->scheduler().GiveUpLoans(First().id);
  AnswerLoans(Send(lending::CreditorAnswers{{NodeId(CreditorOf(late)), Incarnation()}}));
  RunToEnd("r");
  EXPECT_EQ(tokens_["r"], Expected());
  ExpectAllGone();
}

class LatePromptTest : public LateCreditorsTest {
 protected:
  LatePromptTest() : LateCreditorsTest(/*blocks=*/10, /*batch_tokens=*/20) {}
};

TEST_F(LatePromptTest, AChunkOfAPromptIsComputedAgain) {
  Send(Answer("r", 250, 20));
  for (int i = 0; i < 200 && First().remote.lent.empty(); ++i) RunStep();
  ASSERT_FALSE(First().remote.lent.empty());
  ASSERT_GT(First().remaining(), 1) << "the prompt is not computed yet";
  const int64_t computed = First().num_computed;
  RunLateStep(LoanOf(0));
  EXPECT_EQ(First().num_computed, computed);
  EXPECT_EQ(postponed(), 1);
  Answered(LoanOf(0));
  RunToEnd("r", 20);
  EXPECT_EQ(tokens_["r"], Expected(250, 20));
  ExpectAllGone();
}

// ---- new loans

TEST_F(BorrowingTest, ACreditorIsAvoidedForSomeTimeAndWhileItIsLate) {
  Begin();
  const auto avoided = [&](const v1::LoanWanted& wanted) {
    return std::vector<std::string>(wanted.avoid_node_ids().begin(), wanted.avoid_node_ids().end());
  };
  const auto late = [](const std::string& node) {
    return lending::CreditorLate{{NodeId(node), Incarnation()}};
  };
  Send(late("c1"));
  Send(late("c2"));
  v1::LoanWanted wanted = StepUntilWanted();
  EXPECT_THAT(avoided(wanted), ::testing::ElementsAre("c1", "c2"));
  Send(lending::CreditorAnswers{{NodeId("c2"), Incarnation()}});
  Send(Refused(wanted));
  now_ += node::Borrower::kAfterRefusal;
  wanted = StepUntilWanted();
  EXPECT_THAT(avoided(wanted), ::testing::ElementsAre("c1"));
  Send(late("c2"));
  Send(Refused(wanted));
  now_ += node::Borrower::kAvoidTime;
  EXPECT_THAT(avoided(StepUntilWanted()), ::testing::IsEmpty()) << "both times are over";
}

}  // namespace
}  // namespace tandem::decode_node
