// Goal: a creditor lends within its bounds, pins what it lends and frees it at a loan's end,
// whichever way that comes; a debtor asks when its pool is short, hands over only what its creditor
// has verified, and computes a sequence again when a loan is lost.
#include <limits>

#include "tests/unit/node/lending_fixture.h"

namespace tandem::decode_node {
namespace {

// ---- creditor

TEST_F(LendingTest, ALoanIsFilledServedAndReturned) {
  const node::NodeActions taken = Send(Lend(1, 3));
  const v1::LoanOffered offered = Offered(taken);
  EXPECT_EQ(Code(offered), absl::StatusCode::kOk);
  EXPECT_EQ(offered.units(), 3);
  EXPECT_EQ(offered.held_blocks(), 0);
  EXPECT_EQ(Count<lending::ServeLoan>(taken), 1);
  ASSERT_EQ(taken.transfer.size(), 1u);
  EXPECT_EQ(std::get<transfer::OpenLease>(taken.transfer[0]).blocks.size(), 3u);
  EXPECT_EQ(core_->load().blocks_lent(), 3);
  EXPECT_FALSE(core_->idle());
  Send(transfer::LeaseInstalled{.lease = LeaseId(offered.lease_id()), .epoch = Epoch(1)});
  const node::NodeActions ended = Send(lending::LoanReturned{Key(1)});
  EXPECT_EQ(Count<lending::StopServing>(ended), 1);
  EXPECT_EQ(used(), 0);
  EXPECT_EQ(core_->load().blocks_cached(), 3) << "they stay as prefix cache";
  EXPECT_TRUE(core_->idle());
  // The next loan of the same blocks needs no transfer.
  const node::NodeActions again = [&] {
    v1::NodeCommand command = Lend(2, 3);
    command.mutable_lend_blocks()->set_hashes(Lend(1, 3).lend_blocks().hashes());
    return Send(command);
  }();
  EXPECT_EQ(Offered(again).held_blocks(), 3);
  EXPECT_EQ(Offered(again).lease_id(), 0u);
  EXPECT_TRUE(again.transfer.empty());
}

TEST_F(LendingTest, ABlockOfTwoLoansCountsOnce) {
  const v1::LoanOffered filled = Offered(Send(Lend(1, kLendable)));
  EXPECT_EQ(Code(filled), absl::StatusCode::kOk);
  EXPECT_EQ(core_->load().blocks_lent(), kLendable);
  Send(transfer::LeaseInstalled{.lease = LeaseId(filled.lease_id()), .epoch = Epoch(1)});
  // The same blocks for another debtor, though no more may be lent.
  v1::NodeCommand second = Lend(1, kLendable);
  second.mutable_lend_blocks()->set_debtor_node_id("d8");
  const v1::LoanOffered offered = Offered(Send(second));
  EXPECT_EQ(Code(offered), absl::StatusCode::kOk);
  EXPECT_EQ(offered.held_blocks(), kLendable);
  EXPECT_EQ(core_->load().blocks_lent(), kLendable);
  Send(lending::LoanReturned{Key(1)});
  EXPECT_EQ(core_->load().blocks_lent(), kLendable);
}

// A decode node that takes a split prompt over may ask before this core knows that the prefill
// node's blocks have come.
TEST_F(LendingTest, AQuestionAboutBlocksThatArriveWaitsForThem) {
  for (const bool arrives : {true, false}) {
    const v1::LoanOffered filling = Offered(Send(Lend(1, 3)));
    v1::NodeCommand second = Lend(1, 3);
    second.mutable_lend_blocks()->set_debtor_node_id("d8");
    EXPECT_TRUE(Send(second).events.empty());
    core_->PlanStep(now_);
    EXPECT_TRUE(resources_->TakeActions().events.empty()) << "they have not come";
    EXPECT_FALSE(core_->idle());
    const LeaseId lease(filling.lease_id());
    if (arrives) {
      Send(transfer::LeaseInstalled{.lease = lease, .epoch = Epoch(1)});
    } else {
      Send(transfer::LeaseFailed{.lease = lease, .status = absl::UnavailableError("gone")});
      Send(transfer::LeaseDrained{.lease = lease});
    }
    core_->PlanStep(now_);
    const v1::LoanOffered offered = Offered(resources_->TakeActions());
    EXPECT_EQ(offered.debtor_node_id(), "d8");
    EXPECT_EQ(offered.held_blocks(), arrives ? 3 : 0);
    const lending::LoanKey key{{NodeId("d8"), Incarnation(4)}, LoanId(1)};
    Send(lending::LoanReturned{Key(1)});
    Send(lending::LoanReturned{key});
    if (!arrives) Send(transfer::LeaseDrained{.lease = LeaseId(offered.lease_id())});
    EXPECT_TRUE(core_->idle());
    // The next turn begins with an empty cache.
    for (const kv::BlockHash& hash : Hashes(3, 1))
      for (const BlockId block : resources_->scheduler().pool().MatchBlocks({&hash, 1})) {
        resources_->scheduler().pool().Forget(block);
        resources_->scheduler().pool().Unref(block);
      }
  }
}

// Bounds: a question does not wait for ever, nor do more than kWaitingMax.
TEST_F(LendingTest, QuestionsWaitForABoundedTimeAndInABoundedNumber) {
  Send(Lend(1, 3));
  v1::NodeCommand large = Lend(1, static_cast<int>(core_->load().blocks_total()) + 1);
  large.mutable_lend_blocks()->set_debtor_node_id("large");
  EXPECT_EQ(Send(large).events.size(), 1u) << "a question about more blocks than there are";
  v1::NodeCommand other = Lend(1, 1);
  for (size_t i = 0; i < node::Lender::kWaitingMax; ++i) {
    other.mutable_lend_blocks()->set_debtor_node_id(absl::StrCat("e", i));
    EXPECT_TRUE(Send(other).events.empty()) << i;
  }
  other.mutable_lend_blocks()->set_debtor_node_id("one more");
  EXPECT_EQ(Offered(Send(other)).debtor_node_id(), "one more");
  now_ += node::Lender::kWaitMax;
  core_->PlanStep(now_);
  EXPECT_EQ(resources_->TakeActions().events.size(), node::Lender::kWaitingMax);
}

TEST_F(LendingTest, LoansBeyondTheBoundsAreRefusedAndHoldNothing) {
  // Of more units than it may lend, it takes the first.
  const v1::LoanOffered part = Offered(Send(Lend(2, kLendable + 1)));
  EXPECT_EQ(Code(part), absl::StatusCode::kOk);
  EXPECT_EQ(part.units(), kLendable);
  EXPECT_EQ(Code(Offered(Send(Lend(3, 1)))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(Code(Offered(Send(Lend(2, 1)))), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(used(), kLendable);
}

TEST_F(LendingTest, MalformedCommandsAreRefused) {
  v1::NodeCommand command = Lend(1, 2);
  command.mutable_lend_blocks()->set_units(3);
  EXPECT_EQ(Code(Offered(Send(command))), absl::StatusCode::kInvalidArgument);
  command = Lend(1, 2);
  for (const int32_t first : {-1, std::numeric_limits<int32_t>::max()}) {
    command.mutable_lend_blocks()->set_first_unit(first);
    EXPECT_EQ(Code(Offered(Send(command))), absl::StatusCode::kInvalidArgument) << first;
  }
  command = Lend(1, 2);
  command.mutable_lend_blocks()->set_hashes("odd");
  EXPECT_EQ(Code(Offered(Send(command))), absl::StatusCode::kInvalidArgument);
  command = Lend(1, 2);
  command.mutable_lend_blocks()->clear_hashes();
  command.mutable_lend_blocks()->set_units(0);
  EXPECT_EQ(Code(Offered(Send(command))), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(used(), 0);
}

TEST_F(LendingTest, ALoanThatIsNotFilledQuarantinesItsBlocks) {
  const v1::LoanOffered offered = Offered(Send(Lend(1, 2)));
  const node::NodeActions ended = Send(transfer::LeaseFailed{
      LeaseId(offered.lease_id()), Epoch(1), absl::DeadlineExceededError("too late")});
  EXPECT_EQ(Count<lending::StopServing>(ended), 1);
  ASSERT_EQ(ended.transfer.size(), 1u);
  EXPECT_TRUE(std::holds_alternative<transfer::CloseLease>(ended.transfer[0]));
  EXPECT_EQ(core_->load().blocks_quarantined(), 2);
  Send(transfer::LeaseDrained{LeaseId(offered.lease_id())});
  EXPECT_EQ(core_->load().blocks_quarantined(), 0);
  EXPECT_TRUE(core_->idle());
}

TEST_F(LendingTest, AnExpiredLoanEndsAndADrainRecallsTheOthers) {
  Send(Lend(1, 1));
  Send(Lend(2, 1));
  EXPECT_EQ(Count<lending::StopServing>(Send(lending::LoanExpired{Key(1)})), 1);
  core_->BeginDrain(now_, absl::Seconds(2));
  EXPECT_EQ(Count<lending::RecallLoan>(resources_->TakeActions()), 1);
  now_ += node::Lender::kNotice + cost::LoanBytesTime(block_bytes());
  core_->OnTick(now_);
  EXPECT_EQ(Count<lending::StopServing>(resources_->TakeActions()), 1);
  EXPECT_EQ(core_->load().blocks_lent(), 0);
  EXPECT_EQ(Code(Offered(Send(Lend(3, 1)))), absl::StatusCode::kUnavailable);
}

// ---- debtor

TEST_F(BorrowingTest, WithoutLeaveToBorrowASequenceLongerThanThePoolIsRefused) {
  v1::NodeCommand command = Run("r", 100, 1000);
  command.mutable_start_decode()->mutable_sequence()->mutable_stop()->set_max_tokens(200);
  EXPECT_EQ(Refusal(Send(command)).code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(BorrowingTest, BlocksGoBackToThePoolWhenTheCreditorHasThem) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  EXPECT_EQ(wanted.first_unit(), 0);
  ASSERT_GE(wanted.units(), 1);
  const int64_t before = used();
  const node::NodeActions granted = Send(Granted(wanted, 0));
  EXPECT_EQ(Count<lending::UseLoan>(granted), 1);
  ASSERT_GE(granted.transfer.size(), 3u);
  const auto& exported = std::get<transfer::OpenExport>(granted.transfer[0]);
  EXPECT_EQ(std::ssize(exported.blocks), wanted.units());
  EXPECT_TRUE(std::holds_alternative<transfer::PushRange>(granted.transfer[1]));
  EXPECT_TRUE(std::holds_alternative<transfer::FinishExport>(granted.transfer.back()));
  Step();
  EXPECT_GE(used(), before) << "not before the creditor has verified them";
  Send(transfer::ExportDone{.export_id = exported.export_id});
  const auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  ASSERT_NE(slices[0].remote, nullptr);
  EXPECT_EQ(slices[0].remote->lent.front().units.end, wanted.units());
  EXPECT_EQ(slices[0].blocks[0], engine::kNoBlock);
  EXPECT_EQ(core_->load().debts(0).creditor_node_id(), "c");
  EXPECT_EQ(core_->load().debts(0).blocks(), wanted.units());
}

// An equal sequence ran before. Its blocks have the names of those that the second one computes,
// until the pool needs them for something else.
TEST_F(BorrowingTest, BlocksOfASequenceThatRanBeforeAreLent) {
  Send(Answer("before", 20, 55));
  for (int i = 0; i < 57; ++i) Step();
  ASSERT_EQ(used(), 0);
  Send(Answer("r", 20, 200));
  const v1::LoanWanted wanted = StepUntilWanted();
  ASSERT_GT(wanted.units(), 20 / kBlockTokens + 1) << "no block of the answer is among them";
  const node::NodeActions granted = Send(Granted(wanted, 0));
  EXPECT_EQ(Count<lending::ReturnLoan>(granted), 0);
  ASSERT_GE(granted.transfer.size(), 3u);
  const auto& exported = std::get<transfer::OpenExport>(granted.transfer[0]);
  EXPECT_EQ(std::ssize(exported.blocks), wanted.units());
}

// What is damaged cannot be lent. The sequence that has computed with it begins again, and does not
// ask for the same loan for ever.
TEST_F(BorrowingTest, ASequenceWithAForgottenBlockIsComputedAgain) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  const node::Sequence& sequence = *resources_->scheduler().running().begin()->second;
  resources_->scheduler().pool().Forget(sequence.blocks.front());
  EXPECT_EQ(Count<lending::ReturnLoan>(Send(Granted(wanted, 0))), 1);
  int asked = 0;
  for (int i = 0; i < 10; ++i)
    for (const auto& [router, event] : Step().events) asked += event.has_loan_wanted();
  EXPECT_EQ(asked, 0) << "not before kAfterRefusal";
  EXPECT_GT(core_->load().blocks_used(), 0) << "it is computed";
  now_ += node::Borrower::kAfterRefusal;
  const v1::LoanWanted again = StepUntilWanted();
  const node::NodeActions sent = Send(Granted(again, 0));
  EXPECT_EQ(Count<lending::ReturnLoan>(sent), 0);
  EXPECT_FALSE(sent.transfer.empty()) << "its blocks have names again";
}

TEST_F(BorrowingTest, ALostLoanComputesTheSequenceAgain) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  Send(Granted(wanted, wanted.units()));  // the creditor holds them all
  auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  ASSERT_NE(slices[0].remote, nullptr);
  // The engine's step: the creditor does not answer.
  slices[0].remote->failure = absl::UnavailableError("no answer");
  core_->OnStepDone(std::vector<engine::SampledToken>(slices[0].sample ? 1 : 0), now_);
  const node::NodeActions failed = resources_->TakeActions();
  for (const auto& [router, event] : failed.events) EXPECT_FALSE(event.has_leg_failed());
  slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].remote, nullptr);
  EXPECT_GT(slices[0].num_new, 1) << "from its tokens";
  EXPECT_EQ(Count<lending::ReturnLoan>(resources_->TakeActions()), 1);
  EXPECT_EQ(core_->load().debts_size(), 0);
}

// The loan is lost between the plan and the step. The engine begins the step with no failure, and
// may not need that creditor's answer to fail.
TEST_F(BorrowingTest, ALoanThatIsLostDuringAStepIsGivenUpWhenTheStepEnds) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  Send(Granted(wanted, wanted.units()));
  auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  Send(lending::LoanLost{.loan = LoanId(wanted.loan()), .why = absl::UnavailableError("gone")});
  slices[0].remote->failure = absl::OkStatus();
  core_->OnStepDone(std::vector<engine::SampledToken>(slices[0].sample ? 1 : 0), now_);
  slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].remote, nullptr);
  EXPECT_EQ(slices[0].num_new, 1) << "the cache still has the units, so nothing is computed twice";
}

TEST_F(BorrowingTest, WhatLoansCostASequenceIsCounted) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  const auto use = [this] { return resources_->scheduler().running().begin()->second->lent_use; };
  EXPECT_EQ(use().units_max, 0);
  EXPECT_EQ(use().locality(), 1);
  const int64_t tokens_before = use().tokens;
  Send(Granted(wanted, wanted.units()));
  const auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  ASSERT_EQ(slices[0].num_new, 1);
  const int64_t attended = slices[0].num_computed + 1;
  resources_->scheduler().OnCreditorsAwaited(absl::Milliseconds(3));
  core_->OnStepDone(std::vector<engine::SampledToken>(1), now_);
  EXPECT_EQ(use().units_max, wanted.units());
  EXPECT_EQ(use().steps, 1);
  EXPECT_EQ(use().tokens, tokens_before + attended);
  EXPECT_EQ(use().tokens_lent, wanted.units() * kBlockTokens);
  EXPECT_EQ(use().waited, absl::Milliseconds(3));
  // The next step waits for none.
  StepLent();
  EXPECT_EQ(use().steps, 2);
  EXPECT_EQ(use().waited, absl::Milliseconds(3));
  const auto& lent = use().creditors;
  ASSERT_EQ(lent.size(), 1u);
  EXPECT_EQ(lent.at("c").loans, 1);
  EXPECT_EQ(lent.at("c").units, wanted.units());
}

TEST_F(BorrowingTest, TheEndOfASequenceReportsWhatItsLoansCost) {
  Send(Answer("r", 100, 40));
  std::optional<v1::LegFinished> finished;
  int64_t units = 0;
  for (int i = 0; i < 200 && !finished.has_value(); ++i) {
    for (const auto& [router, event] : StepLent().events) {
      if (event.has_loan_wanted()) {
        units += event.loan_wanted().units();
        Send(Granted(event.loan_wanted(), event.loan_wanted().units()));
      }
    }
    for (const auto& [router, event] : resources_->TakeActions().events)
      if (event.has_leg_finished()) finished = event.leg_finished();
  }
  ASSERT_TRUE(finished.has_value());
  ASSERT_EQ(finished->lent().creditors_size(), 1);
  EXPECT_EQ(finished->lent().creditors(0).node_id(), "c");
  EXPECT_EQ(finished->lent().creditors(0).blocks(), units) << "a unit is a block";
  EXPECT_EQ(finished->lent().tokens_max(), units * kBlockTokens);
  EXPECT_GT(finished->lent().steps(), 0);
  EXPECT_LT(finished->lent().locality(), 1);
}

// The router aborts the leg when it finds a stop string, or when the client leaves.
TEST_F(BorrowingTest, AnAbortIsAnsweredWithWhatLoansCost) {
  const auto answer_to_abort = [this](const std::string& id) {
    std::optional<v1::LegFinished> finished;
    const node::NodeActions actions = Send(Abort(id));
    for (const auto& [router, event] : actions.events)
      if (event.has_leg_finished()) finished = event.leg_finished();
    return finished;
  };
  Send(Answer("none", 20, 40));
  Step();
  EXPECT_FALSE(answer_to_abort("none").has_value()) << "it had lent nothing";
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  Send(Granted(wanted, wanted.units()));
  StepLent();
  const std::optional<v1::LegFinished> finished = answer_to_abort("r");
  ASSERT_TRUE(finished.has_value());
  EXPECT_EQ(finished->reason(), v1::FINISH_REASON_ABORTED);
  EXPECT_EQ(finished->lent().tokens_max(), wanted.units() * kBlockTokens);
  EXPECT_EQ(finished->lent().steps(), 1);
  EXPECT_EQ(used(), 0);
  EXPECT_FALSE(answer_to_abort("r").has_value()) << "it is told once";
}

TEST_F(BorrowingTest, ARefusedLoanIsAskedForAgainLater) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  Send(Refused(wanted));
  for (const auto& [router, event] : Step().events) EXPECT_FALSE(event.has_loan_wanted());
  now_ += node::Borrower::kAfterRefusal;
  EXPECT_NE(StepUntilWanted().loan(), wanted.loan());
}

TEST_F(BorrowingTest, ASequenceThatNobodyLendsToEndsInTime) {
  Begin();
  absl::Status end;
  for (int i = 0; i < 4000 && end.ok(); ++i) {
    now_ += absl::Milliseconds(20);
    core_->OnTick(now_);
    node::NodeActions actions = Step();
    for (const auto& [router, event] : actions.events) {
      if (event.has_leg_failed()) end = rpc::FromWire(event.leg_failed().status());
      if (!event.has_loan_wanted()) continue;
      Send(Refused(event.loan_wanted()));
    }
  }
  EXPECT_EQ(end.code(), absl::StatusCode::kResourceExhausted) << end;
  EXPECT_EQ(used(), 0);
}

TEST_F(BorrowingTest, AnExportThatFailsCostsNothing) {
  Begin();
  const v1::LoanWanted wanted = StepUntilWanted();
  const node::NodeActions granted = Send(Granted(wanted, 0));
  const auto id = std::get<transfer::OpenExport>(granted.transfer[0]).export_id;
  EXPECT_EQ(
      Count<lending::ReturnLoan>(Send(transfer::ExportFailed{id, absl::UnavailableError("gone")})),
      1);
  const auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].remote, nullptr);
}

}  // namespace

class LargeLoansTest : public BorrowingTest {
 protected:
  LargeLoansTest()
      : BorrowingTest({.unit_tokens = kBlockTokens,
                       .context_tokens = 4000,
                       .lend_blocks = kLendable,
                       .blocks = 80}) {}
  static int64_t BlocksPushed(const node::NodeActions& actions) {
    int64_t blocks = 0;
    for (const transfer::TransferCommand& command : actions.transfer)
      if (const auto* push = std::get_if<transfer::PushRange>(&command))
        blocks += push->ordinal_count;
    return blocks;
  }
};

TEST_F(LargeLoansTest, AllLoansTogetherSendABoundedNumberOfBlocksAStep) {
  for (const char* id : {"r", "s"}) {
    v1::NodeCommand answer = Answer(id, 600, 2000);
    answer.mutable_start_decode()->set_borrow_blocks_max(200);
    auto& prompt = *answer.mutable_start_decode()->mutable_sequence()->mutable_prompt();
    for (TokenId& token : prompt) token %= 100;
    prompt[0] = id[0];  // they share no blocks
    ASSERT_TRUE(Refusal(Send(answer)).code() == absl::StatusCode::kUnknown) << "not refused";
  }
  // One loan because blocks are short, and one that the router has planned.
  std::vector<v1::LoanWanted> wanted;
  for (int i = 0; i < 40; ++i) {
    for (const auto& [router, event] : Step().events)
      if (event.has_loan_wanted()) wanted.push_back(event.loan_wanted());
    if (i != 30) continue;
    v1::NodeCommand plan;
    plan.mutable_borrow_blocks()->set_blocks(node::Borrower::kUnitsMax);
    plan.mutable_borrow_blocks()->set_creditor_node_id("c");
    Send(plan);
  }
  ASSERT_EQ(wanted.size(), 2u);
  const int64_t to_send = wanted[0].units() + wanted[1].units();
  ASSERT_GT(to_send, node::MovingPace::kBlocksMax);
  int64_t pushed = 0, since_step = 0;
  for (const v1::LoanWanted& loan : wanted) since_step += BlocksPushed(Send(Granted(loan, 0)));
  for (int i = 0; i < 10 && pushed + since_step < to_send; ++i) {
    EXPECT_LE(since_step, node::MovingPace::kBlocksMax);
    pushed += since_step;
    since_step = BlocksPushed(Step());
  }
  EXPECT_LE(since_step, node::MovingPace::kBlocksMax);
  EXPECT_EQ(pushed + since_step, to_send);
}

// A step is predicted to take 1 ms, and an export told that a block takes 15 us of the transfer
// thread: two of them are 3 %. There is room for as long as the loan takes.
TEST_F(LargeLoansTest, ALoanLeavesAsFastAsAStepCanBear) {
  const auto begin = [&](const char* id) {
    v1::NodeCommand answer = Answer(id, 100, 500);
    answer.mutable_start_decode()->set_borrow_blocks_max(200);
    Send(answer);
  };
  step_time_ = absl::Milliseconds(1);
  const auto lend_planned = [&](int32_t units) {
    v1::NodeCommand plan;
    plan.mutable_borrow_blocks()->set_blocks(units);
    plan.mutable_borrow_blocks()->set_creditor_node_id("c");
    Send(plan);
    std::optional<v1::LoanWanted> wanted;
    for (int i = 0; i < 40 && !wanted.has_value(); ++i)
      for (const auto& [router, event] : Step().events)
        if (event.has_loan_wanted()) wanted = event.loan_wanted();
    return wanted;
  };
  begin("measured");
  for (int i = 0; i < 20; ++i) Step();
  const auto first = lend_planned(2);
  ASSERT_TRUE(first.has_value());
  const node::NodeActions granted = Send(Granted(*first, 0));
  const auto id = std::get<transfer::OpenExport>(granted.transfer[0]).export_id;
  const int64_t bytes = 2 * engine_->spec().layout.block_bytes();
  Send(Abort("measured"));
  Send(transfer::ExportDone{
      .export_id = id, .bytes_sent = bytes, .processor_time = absl::Microseconds(30)});
  begin("r");
  const auto second = lend_planned(8);
  ASSERT_TRUE(second.has_value());
  int64_t pushed = BlocksPushed(Send(Granted(*second, 0)));
  EXPECT_LE(pushed, 2);
  for (int i = 0; i < 20 && pushed < second->units(); ++i) {
    const int64_t blocks = BlocksPushed(Step());
    EXPECT_LE(blocks, 2) << i;
    pushed += blocks;
  }
  EXPECT_EQ(pushed, second->units());
}

}  // namespace tandem::decode_node
