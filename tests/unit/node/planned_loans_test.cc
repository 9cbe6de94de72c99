// Goal: a node borrows for a router's plan although it needs no memory: as much as was planned, of
// the creditor that was named, and once. What was lent for a plan stays for some seconds and then
// comes home; a refusal and time end a plan.
#include <limits>

#include "common/node/freed_room.h"
#include "tests/unit/node/lending_fixture.h"

namespace tandem::decode_node {
namespace {

class PlannedLoansTest : public BorrowingTest {
 protected:
  // A sequence of 3 blocks in a pool of 8, which need not borrow.
  PlannedLoansTest() {
    Send(Answer("r", 50, 20));
    for (int i = 0; i < 3; ++i) StepLent();
  }
  static v1::NodeCommand Plan(int64_t blocks) {
    v1::NodeCommand command;
    command.mutable_borrow_blocks()->set_blocks(blocks);
    command.mutable_borrow_blocks()->set_creditor_node_id("c");
    return command;
  }
  // The loan that the core asks for within three steps; none: units are 0.
  v1::LoanWanted WantedSoon() {
    for (int i = 0; i < 3; ++i)
      for (const auto& [router, event] : StepLent().events)
        if (event.has_loan_wanted()) return event.loan_wanted();
    return {};
  }
};

TEST_F(PlannedLoansTest, WithoutAPlanNothingIsAskedFor) {
  EXPECT_EQ(WantedSoon().units(), 0);
  EXPECT_EQ(core_->blocks_lendable(), 3);
}

TEST_F(PlannedLoansTest, AsMuchAsPlannedIsAskedForOnce) {
  Send(Plan(2));
  const v1::LoanWanted wanted = WantedSoon();
  EXPECT_EQ(wanted.units(), 2);
  EXPECT_EQ(wanted.prefer_node_id(), "c");
  Send(Granted(wanted, wanted.units()));
  EXPECT_EQ(WantedSoon().units(), 0);
  EXPECT_EQ(core_->blocks_lendable(), 1);
  EXPECT_EQ(core_->load().debts(0).blocks(), 2);
}

// It must not take memory from a younger sequence of another node.
TEST_F(PlannedLoansTest, ALoanThatIsOnlyPlannedHasNoAge) {
  const auto begin = [this](const std::string& id, int prompt, int tokens) {
    v1::NodeCommand command = Answer(id, prompt, tokens);
    command.mutable_start_decode()->set_arrived_us(70);
    EXPECT_EQ(Refusal(Send(command)).message(), "not refused");
  };
  Send(Abort("r"));
  begin("fits", 50, 20);
  for (int i = 0; i < 3; ++i) StepLent();
  Send(Plan(2));
  const v1::LoanWanted planned = WantedSoon();
  ASSERT_EQ(planned.units(), 2);
  EXPECT_EQ(planned.arrived_us(), 0);
  Send(Refused(planned));
  Send(Abort("fits"));
  now_ += node::Borrower::kAfterRefusal;
  // One that outgrows the pool, and is planned for as well.
  begin("grows", 100, 200);
  Send(Plan(2));
  v1::LoanWanted needed;
  for (int i = 0; i < 50 && needed.units() == 0; ++i) needed = WantedSoon();
  EXPECT_EQ(needed.arrived_us(), 70);
}

TEST_F(PlannedLoansTest, NotMoreThanTheSequencesHave) {
  Send(Plan(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(WantedSoon().units(), 3);
  for (const int64_t blocks : {int64_t{0}, int64_t{-1}, std::numeric_limits<int64_t>::min()}) {
    Send(Plan(blocks));
    EXPECT_EQ(WantedSoon().units(), 0) << blocks;
  }
}

TEST_F(PlannedLoansTest, ARefusalAndTimeEndAPlan) {
  Send(Plan(2));
  const v1::LoanWanted wanted = WantedSoon();
  Send(Plan(2));  // again, while the first question is open: it counts for the next loan
  Send(Refused(wanted));
  now_ += node::Borrower::kAfterRefusal;
  EXPECT_EQ(WantedSoon().units(), 0);
  Send(Plan(2));
  now_ += node::Borrower::kPlanTimeMax;
  EXPECT_EQ(WantedSoon().units(), 0);
}

TEST_F(PlannedLoansTest, WhatIsLentStaysForSomeSecondsAndThenComesHome) {
  Send(Abort("r"));
  Send(Answer("short", 20, 12));
  for (int i = 0; i < 3; ++i) StepLent();
  Send(Plan(1));
  Send(Granted(WantedSoon(), 1));
  const auto begins_home = [&] {
    bool begins = false;
    for (const auto& [router, event] : StepLent().events) begins |= event.has_blocks_wanted();
    return begins;
  };
  EXPECT_FALSE(begins_home());
  EXPECT_EQ(core_->load().debts_size(), 1);
  now_ += node::Borrower::kPlannedKept - absl::Milliseconds(1);
  EXPECT_FALSE(begins_home());
  now_ += absl::Milliseconds(1);
  EXPECT_TRUE(begins_home());
}

// A link or a creditor may fail once.
TEST_F(PlannedLoansTest, UnitsThatDidNotComeHomeAreFetchedAgainAfterSomeTime) {
  Send(Abort("r"));
  Send(Answer("short", 20, 12));
  for (int i = 0; i < 3; ++i) StepLent();
  Send(Plan(1));
  Send(Granted(WantedSoon(), 1));
  StepLent();
  const auto fetched = [&] {
    for (const auto& [router, event] : StepLent().events)
      if (event.has_blocks_wanted()) return event.blocks_wanted().lease_id();
    return uint64_t{0};
  };
  now_ += node::Borrower::kPlannedKept;
  const LeaseId lease(fetched());
  ASSERT_NE(lease.value(), 0u);
  Send(transfer::LeaseFailed{lease, Epoch(1), absl::UnavailableError("gone")});
  Send(transfer::LeaseDrained{lease});
  now_ += node::Borrower::kHomeAgainAfter - absl::Milliseconds(1);
  EXPECT_EQ(fetched(), 0u);
  now_ += absl::Milliseconds(1);
  const uint64_t again = fetched();
  ASSERT_NE(again, 0u);
  Send(transfer::LeaseInstalled{.lease = LeaseId(again), .epoch = Epoch(1)});
  StepLent();
  EXPECT_EQ(resources_->counters().loans_home(), 1);
}

TEST_F(PlannedLoansTest, TheEndOfItsDebtsIsNewsForRouters) {
  Send(Plan(1));
  Send(Granted(WantedSoon(), 1));
  StepLent();
  node::FreedRoom room;
  room.OnReported(core_->held());
  EXPECT_EQ(core_->held(), node::FreedRoom::HeldBy(core_->load()));
  for (int i = 0; i < 20; ++i) StepLent();
  EXPECT_EQ(core_->load().sequences_running(), 0);
  EXPECT_EQ(core_->load().debts_size(), 0);
  EXPECT_TRUE(room.TakeDue(core_->held()));
}

}  // namespace
}  // namespace tandem::decode_node
