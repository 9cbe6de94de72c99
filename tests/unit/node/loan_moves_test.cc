// Goal: a recalled loan moves: its next creditor fetches all of it before it is used, the debtor
// swaps the two between steps and computes nothing again, or its units come home; if neither can
// be, nothing is left behind. Of two sequences that outgrow their nodes, the older goes on.
#include <algorithm>

#include "tests/unit/node/lending_fixture.h"

namespace tandem::decode_node {
namespace {

// ---- a loan that moves here

class MovingHereTest : public LendingTest {
 protected:
  static v1::NodeCommand Move(uint64_t loan, int blocks) {
    v1::NodeCommand command = Lend(loan, blocks);
    command.mutable_lend_blocks()->set_from_node_id("c1");
    command.mutable_lend_blocks()->set_from_incarnation(6);
    return command;
  }
  // The lease of a loan that moves here, after checking what was asked for.
  static LeaseId Fetched(const node::NodeActions& actions, int blocks) {
    EXPECT_EQ(Count<lending::ServeLoan>(actions), 0) << "not before it has arrived";
    if (actions.events.size() != 1 || !actions.events[0].second.has_blocks_wanted()) {
      ADD_FAILURE() << "nothing is fetched";
      return {};
    }
    const v1::BlocksWanted& wanted = actions.events[0].second.blocks_wanted();
    EXPECT_EQ(wanted.from_node_id(), "c1");
    EXPECT_EQ(wanted.from_incarnation(), 6u);
    EXPECT_TRUE(wanted.fetch() && wanted.lent());
    EXPECT_EQ(wanted.hashes().size(), static_cast<size_t>(blocks) * kv::kBlockHashBytes);
    return LeaseId(wanted.lease_id());
  }
};

TEST_F(MovingHereTest, TheOfferComesWhenTheBlocksHaveArrived) {
  const LeaseId lease = Fetched(Send(Move(1, 3)), 3);
  const node::NodeActions arrived =
      Send(transfer::LeaseInstalled{.lease = lease, .epoch = Epoch(1)});
  EXPECT_EQ(Count<lending::ServeLoan>(arrived), 1);
  EXPECT_EQ(Code(Offered(arrived)), absl::StatusCode::kOk);
  EXPECT_EQ(Offered(arrived).units(), 3);
  EXPECT_EQ(Offered(arrived).held_blocks(), 3);
  EXPECT_EQ(Offered(arrived).lease_id(), 0u);
  Send(lending::LoanReturned{Key(1)});
  EXPECT_TRUE(core_->idle());
  // What is here already is not fetched.
  v1::NodeCommand again = Move(2, 3);
  again.mutable_lend_blocks()->set_hashes(Lend(1, 3).lend_blocks().hashes());
  const node::NodeActions held = Send(again);
  EXPECT_EQ(Count<lending::ServeLoan>(held), 1);
  EXPECT_EQ(Offered(held).held_blocks(), 3);
}

TEST_F(MovingHereTest, ItIsTakenOnAsAWholeOrNotAtAll) {
  EXPECT_EQ(Code(Offered(Send(Move(1, kLendable + 1)))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(used(), 0);
  EXPECT_TRUE(core_->idle());
}

TEST_F(MovingHereTest, OneThatDoesNotArriveIsRefusedAndHoldsNothing) {
  const LeaseId failed = Fetched(Send(Move(1, 2)), 2);
  const node::NodeActions late =
      Send(transfer::LeaseFailed{failed, Epoch(1), absl::DeadlineExceededError("too late")});
  EXPECT_EQ(Code(Offered(late)), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Count<lending::StopServing>(late), 0) << "it was never served";
  Send(transfer::LeaseDrained{failed});
  EXPECT_TRUE(core_->idle());

  const LeaseId alone = Fetched(Send(Move(2, 2)), 2);
  v1::NodeCommand no_holder;
  no_holder.mutable_send_blocks()->set_lease_id(alone.value());
  no_holder.mutable_send_blocks()->set_fetch(true);
  EXPECT_EQ(Code(Offered(Send(no_holder))), absl::StatusCode::kUnavailable);
  Send(transfer::LeaseDrained{alone});
  EXPECT_TRUE(core_->idle());

  const LeaseId drains = Fetched(Send(Move(3, 2)), 2);
  core_->BeginDrain(now_, absl::Seconds(30));
  const node::NodeActions drained = resources_->TakeActions();
  EXPECT_EQ(Code(Offered(drained)), absl::StatusCode::kUnavailable);
  Send(transfer::LeaseDrained{drains});
  EXPECT_TRUE(core_->idle());
}

TEST_F(MovingHereTest, TheCreditorThatALoanLeavesSendsItsBlocks) {
  const v1::LoanOffered offered = Offered(Send(Lend(1, 3)));
  Send(transfer::LeaseInstalled{.lease = LeaseId(offered.lease_id()), .epoch = Epoch(1)});
  v1::NodeCommand send;
  v1::SendBlocks& blocks = *send.mutable_send_blocks();
  blocks.set_hashes(Lend(1, 3).lend_blocks().hashes());
  blocks.set_receiver_node_id("c2");
  blocks.set_lease_id(5);
  blocks.set_epoch(1);
  blocks.set_fetch(true);
  blocks.set_lent(true);
  const node::NodeActions sent = Send(send);
  ASSERT_EQ(sent.transfer.size(), 3u);
  const auto& exported = std::get<transfer::OpenExport>(sent.transfer[0]);
  EXPECT_EQ(exported.blocks.size(), 3u);
  EXPECT_EQ(exported.window_first_ordinal, 3) << "windowed layers have no part in it";
  EXPECT_EQ(exported.deadline,
            now_ + node::PrefixFetch::kTimeMax + cost::LoanBytesTime(3 * block_bytes()));
  Send(lending::LoanReturned{Key(1)});
  EXPECT_EQ(used(), 3) << "pinned until they are sent";
  Send(transfer::ExportDone{.export_id = exported.export_id});
  EXPECT_EQ(used(), 0);
}

// ---- a loan that moves away

class MovingAwayTest : public BorrowingTest {
 protected:
  // A loan of the sequence's first units, in use.
  v1::LoanWanted BeginWithALoan() {
    Begin();
    const v1::LoanWanted wanted = StepUntilWanted();
    Send(Granted(wanted, wanted.units()));
    StepLent();
    EXPECT_EQ(core_->load().debts_size(), 1);
    return wanted;
  }
  // What the next step asks for, after the creditor's recall.
  v1::LoanWanted WantedAfterRecall(uint64_t loan) {
    core_->OnLending(lending::LoanRecalled{LoanId(loan)}, now_);
    for (const auto& [router, event] : StepLent().events)
      if (event.has_loan_wanted() && !event.loan_wanted().from_node_id().empty())
        return event.loan_wanted();
    ADD_FAILURE() << "no other creditor is asked for";
    return {};
  }
};

TEST_F(MovingAwayTest, AnotherCreditorTakesTheRecalledOnesPlaceBetweenTwoSteps) {
  const v1::LoanWanted first = BeginWithALoan();
  const v1::LoanWanted next = WantedAfterRecall(first.loan());
  EXPECT_EQ(next.from_node_id(), "c");
  EXPECT_EQ(next.first_unit(), first.first_unit());
  EXPECT_EQ(next.units(), first.units());
  EXPECT_EQ(next.hashes(), first.hashes());
  ASSERT_EQ(next.avoid_node_ids_size(), 1);
  // The answer comes during a step: the loan is swapped when it has ended.
  auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  v1::NodeCommand granted = Granted(next, next.units());
  granted.mutable_loan_answer()->set_creditor_node_id("c2");
  EXPECT_EQ(Count<lending::UseLoan>(Send(granted)), 1);
  EXPECT_EQ(slices[0].remote->lent.front().loan.value(), first.loan());
  const int64_t computed = slices[0].num_computed;
  core_->OnStepDone(std::vector<engine::SampledToken>(slices[0].sample ? 1 : 0), now_);
  slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].remote->lent.front().loan.value(), next.loan());
  EXPECT_GT(slices[0].num_computed, computed) << "nothing is computed again";
  EXPECT_EQ(Count<lending::ReturnLoan>(resources_->TakeActions()), 1);
  ASSERT_EQ(core_->load().debts_size(), 1);
  EXPECT_EQ(core_->load().debts(0).creditor_node_id(), "c2");
  EXPECT_EQ(resources_->counters().loans_moved(), 1);
  EXPECT_EQ(resources_->counters().loans_lost(), 0);
}

TEST_F(MovingAwayTest, IfNoNodeTakesItTheSequenceIsComputedAgain) {
  const v1::LoanWanted first = BeginWithALoan();
  const v1::LoanWanted next = WantedAfterRecall(first.loan());
  Send(Refused(next));
  const auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].remote, nullptr);
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
  EXPECT_EQ(core_->load().debts_size(), 0);
}

TEST_F(MovingAwayTest, ACreditorWithoutAllOfItsUnitsIsNotUsed) {
  const v1::LoanWanted first = BeginWithALoan();
  const v1::LoanWanted next = WantedAfterRecall(first.loan());
  const node::NodeActions part = Send(Granted(next, 0));
  EXPECT_EQ(Count<lending::ReturnLoan>(part), 1);
  EXPECT_TRUE(part.transfer.empty()) << "the debtor has nothing to send";
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
}

TEST_F(MovingAwayTest, ACreditorThatTakesFewerUnitsIsNotUsedEither) {
  const v1::LoanWanted first = BeginWithALoan();
  const v1::LoanWanted next = WantedAfterRecall(first.loan());
  ASSERT_GT(next.units(), 1);
  v1::NodeCommand fewer = Granted(next, next.units());
  fewer.mutable_loan_answer()->set_units(next.units() - 1);
  EXPECT_EQ(Count<lending::ReturnLoan>(Send(fewer)), 1);
  EXPECT_EQ(resources_->counters().loans_lost(), 1) << "its sequence is computed again";
}

TEST_F(MovingAwayTest, ALoanThatIsLostMeanwhileLeavesNothingBehind) {
  const v1::LoanWanted first = BeginWithALoan();
  const v1::LoanWanted next = WantedAfterRecall(first.loan());
  core_->OnLending(lending::LoanLost{LoanId(first.loan()), absl::UnavailableError("gone")}, now_);
  EXPECT_EQ(resources_->counters().loans_lost(), 1);
  resources_->TakeActions();
  Send(Granted(next, next.units()));
  core_->PlanStep(now_);
  EXPECT_EQ(core_->load().debts_size(), 0);
  EXPECT_EQ(resources_->counters().loans_moved(), 0);
}

// The units of a loan that a creditor recalls, while there is room here again.
class ComingHomeTest : public MovingAwayTest {
 protected:
  // The fetch of the first unit of sequence "a", which another sequence had left no room for.
  v1::BlocksWanted BeginHome() {
    v1::NodeCommand a = Run("a", 49, /*local_max=*/1000);
    a.mutable_start_decode()->mutable_sequence()->mutable_stop()->set_max_tokens(40);
    Send(a);
    Step();
    Send(Run("b", 32, /*local_max=*/1000));
    v1::LoanWanted wanted = StepUntilWanted();
    wanted.set_units(1);
    loan_ = wanted.loan();
    Send(Granted(wanted, 1));
    for (const auto& [router, event] : StepLent().events)
      if (event.has_loan_wanted()) Send(Refused(event.loan_wanted()));
    Send(Abort("b"));
    core_->OnLending(lending::LoanRecalled{LoanId(loan_)}, now_);
    const node::NodeActions actions = StepLent();
    for (const auto& command : actions.transfer)
      if (const auto* lease = std::get_if<transfer::OpenLease>(&command))
        deadline_ = lease->deadline;
    for (const auto& [router, event] : actions.events)
      if (event.has_blocks_wanted()) return event.blocks_wanted();
    ADD_FAILURE() << "nothing comes home";
    return {};
  }
  uint64_t loan_ = 0;
  absl::Time deadline_;  // of the fetch
};

TEST_F(ComingHomeTest, TheUnitsAreFetchedAndTheLoanIsReturned) {
  const v1::BlocksWanted wanted = BeginHome();
  EXPECT_EQ(wanted.from_node_id(), "c");
  EXPECT_TRUE(wanted.fetch() && wanted.lent());
  EXPECT_EQ(wanted.hashes().size(), kv::kBlockHashBytes);
  EXPECT_EQ(deadline_, now_ + node::LoanHome::kTimeMax + cost::LoanBytesTime(block_bytes()));
  StepLent();
  EXPECT_EQ(core_->load().debts_size(), 1) << "not before they have arrived";
  Send(transfer::LeaseInstalled{.lease = LeaseId(wanted.lease_id()), .epoch = Epoch(1)});
  const auto slices = core_->PlanStep(now_);
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].remote, nullptr);
  EXPECT_NE(slices[0].blocks[0], engine::kNoBlock);
  EXPECT_EQ(slices[0].num_new, 1) << "nothing is computed again";
  EXPECT_EQ(Count<lending::ReturnLoan>(resources_->TakeActions()), 1);
  EXPECT_EQ(core_->load().debts_size(), 0);
  EXPECT_EQ(resources_->counters().loans_home(), 1);
}

TEST_F(ComingHomeTest, IfTheyDoNotArriveAnotherCreditorIsAskedFor) {
  const v1::BlocksWanted wanted = BeginHome();
  Send(transfer::LeaseFailed{LeaseId(wanted.lease_id()), Epoch(1), absl::UnavailableError("gone")});
  EXPECT_EQ(core_->load().blocks_quarantined(), 1);
  bool asked = false;
  for (const auto& [router, event] : StepLent().events)
    asked |= event.has_loan_wanted() && event.loan_wanted().from_node_id() == "c";
  EXPECT_TRUE(asked);
  Send(transfer::LeaseDrained{LeaseId(wanted.lease_id())});
  EXPECT_EQ(core_->load().blocks_quarantined(), 0);
}

TEST_F(ComingHomeTest, WhatArrivesForAnEndedSequenceStaysAsPrefixCache) {
  const v1::BlocksWanted wanted = BeginHome();
  Send(transfer::LeaseInstalled{.lease = LeaseId(wanted.lease_id()), .epoch = Epoch(1)});
  Send(Abort("a"));
  core_->PlanStep(now_);
  EXPECT_EQ(used(), 0);
  EXPECT_TRUE(core_->idle());
}

// ---- of two sequences that outgrow their nodes, the older goes on

class GivingWayTest : public BorrowingTest {
 protected:
  using BorrowingTest::BorrowingTest;
  static constexpr int64_t kArrived = 100;
  // A sequence with all of the pool; it outgrows it unless `fits`.
  void BeginOwn(bool fits = false) {
    BeginOwnBeside(100, fits);
    ASSERT_GE(used(), 7);
  }
  // One with a shorter prompt.
  void BeginOwnBeside(int prompt, bool fits = false) {
    v1::NodeCommand command = Run("own", prompt, /*local_max=*/1000);
    v1::StartDecode& start = *command.mutable_start_decode();
    start.mutable_sequence()->mutable_stop()->set_max_tokens(fits ? 20 : 200);
    start.set_borrow_blocks_max(20);
    start.set_arrived_us(kArrived);
    Send(command);
    Step();
  }
  node::NodeActions LendTo(uint64_t loan, int64_t arrived_us) {
    v1::NodeCommand command = Lend(loan, 3);
    command.mutable_lend_blocks()->set_arrived_us(arrived_us);
    return Send(command);
  }
  bool Plans() {
    const bool plans = !core_->PlanStep(now_).empty();
    if (plans) core_->OnStepDone(absl::UnavailableError("not computed"), now_);
    resources_->TakeActions();
    return plans;
  }
};

TEST_F(GivingWayTest, AYoungerSequenceGivesItsBlocksToAnOlderOneAndFollowsIt) {
  BeginOwn();
  EXPECT_EQ(Code(Offered(LendTo(1, kArrived - 1))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(used(), 0) << "it has given way";
  EXPECT_EQ(resources_->counters().sequences_held_back(), 1);
  EXPECT_EQ(resources_->counters().loans_lost(), 0) << "nothing was lost";
  const v1::LoanOffered offered = Offered(LendTo(2, kArrived - 1));
  EXPECT_EQ(Code(offered), absl::StatusCode::kOk);
  Send(transfer::LeaseInstalled{.lease = LeaseId(offered.lease_id()), .epoch = Epoch(1)});
  now_ += 2 * node::Lender::kHeldMin;
  core_->OnTick(now_);
  EXPECT_TRUE(core_->PlanStep(now_).empty()) << "the older one still has its loan";
  Send(lending::LoanReturned{Key(2)});
  core_->OnTick(now_);
  EXPECT_TRUE(Plans());
}

// A loan of another answer of the same request, and one whose request's age is not known.
TEST_F(GivingWayTest, ItDoesNotWaitForLoansThatAreNotOlder) {
  for (const int64_t arrived_us : {kArrived, int64_t{0}}) {
    SCOPED_TRACE(arrived_us);
    MakeFresh();
    core_->OnRouterJoined(kRouter, now_);
    BeginOwn();
    LendTo(1, kArrived - 1);
    ASSERT_EQ(used(), 0) << "it has given way";
    v1::NodeCommand other = Lend(2, 1);
    other.mutable_lend_blocks()->set_arrived_us(arrived_us);
    EXPECT_EQ(Code(Offered(Send(other))), absl::StatusCode::kOk);
    now_ += node::Lender::kHeldMin;
    core_->OnTick(now_);
    EXPECT_TRUE(Plans());
  }
}

TEST_F(GivingWayTest, ItFollowsWhenTheOlderOneDoesNotAskAgain) {
  BeginOwn();
  LendTo(1, kArrived - 1);
  core_->OnTick(now_);
  EXPECT_TRUE(core_->PlanStep(now_).empty());
  now_ += node::Lender::kHeldMin;
  core_->OnTick(now_);
  EXPECT_TRUE(Plans());
}

TEST_F(GivingWayTest, AnOlderOneAndOneOfUnknownAgeKeepTheirs) {
  BeginOwn();
  for (const int64_t arrived_us : {kArrived, kArrived + 1, int64_t{0}}) {
    EXPECT_EQ(Code(Offered(LendTo(1, arrived_us))), absl::StatusCode::kResourceExhausted);
    EXPECT_GE(used(), 7) << arrived_us;
  }
}

TEST_F(GivingWayTest, LoansThatNobodyNeedsAreRecalledFirst) {
  for (const auto& [loan, arrived_us] : {std::pair(1, int64_t{0}), std::pair(2, kArrived - 1)}) {
    v1::NodeCommand command = Lend(static_cast<uint64_t>(loan), 2);
    command.mutable_lend_blocks()->set_arrived_us(arrived_us);
    EXPECT_EQ(Offered(Send(command)).units(), 2);
  }
  BeginOwnBeside(/*prompt=*/20);
  for (int i = 0; i < 100 && !resources_->scheduler().short_of_blocks(); ++i) Step();
  core_->OnTick(now_);
  EXPECT_EQ(resources_->counters().sequences_held_back(), 0);
  const node::NodeActions actions = resources_->TakeActions();
  ASSERT_EQ(Count<lending::RecallLoan>(actions), 1);
  for (const auto& command : actions.lending) {
    const auto* recall = std::get_if<lending::RecallLoan>(&command);
    if (recall != nullptr) {
      EXPECT_EQ(recall->key, Key(1));
    }
  }
}

TEST_F(GivingWayTest, SequencesThatFitDoNotGiveWay) {
  BeginOwn(/*fits=*/true);
  EXPECT_EQ(Code(Offered(LendTo(1, kArrived - 1))), absl::StatusCode::kResourceExhausted);
  EXPECT_GE(used(), 7);
}

// Two sequences of one request, on this node and on "d9", the debtor: one of them gives way, the
// same one whichever node asks.
class EquallyOldTest : public GivingWayTest, public ::testing::WithParamInterface<std::string> {
 protected:
  EquallyOldTest()
      : GivingWayTest({.unit_tokens = kBlockTokens,
                       .context_tokens = 400,
                       .lend_blocks = kLendable,
                       .node = GetParam()}) {}
  static bool gives_way() { return GetParam() > "d9"; }
};

TEST_P(EquallyOldTest, TheOneOfTheNodeWithTheLesserIdGoesOn) {
  BeginOwn();
  EXPECT_EQ(Code(Offered(LendTo(1, kArrived))), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(used() == 0, gives_way());
  EXPECT_EQ(resources_->counters().sequences_held_back(), gives_way() ? 1 : 0);
  if (!gives_way()) return;
  // It waits for the other one's loan as for one of an older sequence.
  const v1::LoanOffered offered = Offered(LendTo(2, kArrived));
  EXPECT_EQ(Code(offered), absl::StatusCode::kOk);
  Send(transfer::LeaseInstalled{.lease = LeaseId(offered.lease_id()), .epoch = Epoch(1)});
  now_ += 2 * node::Lender::kHeldMin;
  core_->OnTick(now_);
  EXPECT_TRUE(core_->PlanStep(now_).empty());
  Send(lending::LoanReturned{Key(2)});
  core_->OnTick(now_);
  EXPECT_TRUE(Plans());
}

INSTANTIATE_TEST_SUITE_P(Nodes, EquallyOldTest, ::testing::Values("d1", "d90"));

// All that the node may lend is lent to an older sequence when its own one outgrows the pool.
class AtTheLimitTest : public GivingWayTest {
 protected:
  static constexpr int kLimit = 3;
  AtTheLimitTest()
      : GivingWayTest({.unit_tokens = kBlockTokens, .context_tokens = 400, .lend_blocks = kLimit}) {
  }
};

TEST_F(AtTheLimitTest, AYoungerSequenceGivesWayBeforeAnOlderOnesLoanIsRecalled) {
  v1::NodeCommand older = Lend(1, kLimit + 1);
  older.mutable_lend_blocks()->set_arrived_us(kArrived - 1);
  const v1::LoanOffered offered = Offered(Send(older));
  ASSERT_EQ(offered.units(), kLimit);
  Send(transfer::LeaseInstalled{.lease = LeaseId(offered.lease_id()), .epoch = Epoch(1)});
  BeginOwnBeside(/*prompt=*/20);
  for (int i = 0; i < 100 && !resources_->scheduler().short_of_blocks(); ++i) Step();
  ASSERT_TRUE(resources_->scheduler().short_of_blocks());
  core_->OnTick(now_);
  EXPECT_EQ(Count<lending::RecallLoan>(resources_->TakeActions()), 0);
  EXPECT_EQ(resources_->counters().sequences_held_back(), 1);
}

}  // namespace
}  // namespace tandem::decode_node
