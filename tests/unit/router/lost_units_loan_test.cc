// Goal: units that a debtor has lost with their creditor are looked for at other nodes: one that
// holds their blocks lends them, or another fetches them from it. Only the units that it holds are
// asked for, and never the creditor that lost them, the debtor, or a node that it avoids. Without a
// holder the debtor hears so at once.
#include "tests/unit/router/loan_broker_fixture.h"

namespace tandem::router {
namespace {

constexpr int kUnits = 4, kUnitBlocks = 4;

class LostUnitsLoanTest : public LoanBrokerTest {
 protected:
  void WantLost(uint64_t loan, const std::string& from,
                const std::vector<std::string>& avoid = {}) {
    v1::NodeEvent event;
    v1::LoanWanted& wanted = *event.mutable_loan_wanted();
    wanted.set_loan(loan);
    wanted.set_first_unit(3);
    wanted.set_units(kUnits);
    wanted.set_hashes(kv::PackHashes(Hashes(kUnits * kUnitBlocks)));
    wanted.set_from_node_id(from);
    wanted.set_from_incarnation(Lends(from).incarnation());
    wanted.set_lost(true);
    for (const std::string& node : avoid) wanted.add_avoid_node_ids(node);
    harness_.Say(1, {event});
  }
  void Store(uint64_t node, int blocks, bool on_disk = false) {
    v1::NodeEvent stored;
    stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(Hashes(blocks)));
    stored.mutable_blocks_stored()->set_on_disk(on_disk);
    harness_.Say(node, {stored});
  }
  // LendBlocks to the node.
  v1::LendBlocks Asked(uint64_t node) {
    const v1::NodeCommand command = harness_.Next(node);
    EXPECT_TRUE(command.has_lend_blocks()) << command.ShortDebugString();
    return command.lend_blocks();
  }
  void ExpectNoHolder() {
    EXPECT_EQ(rpc::FromWire(Answer().status()).code(), absl::StatusCode::kNotFound);
    for (uint64_t node = 2; node <= nodes_; ++node) EXPECT_TRUE(harness_.Quiet(node)) << node;
  }
};

TEST_F(LostUnitsLoanTest, AHolderThatLendsKeepsThemItself) {
  Join({Lends("d1"), Lends("d2"), Lends("d3"), Lends("d4")});
  Store(3, kUnits * kUnitBlocks);
  WantLost(9, "d2");
  const v1::LendBlocks lend = Asked(3);
  EXPECT_EQ(lend.loan(), 9u);
  EXPECT_EQ(lend.first_unit(), 3);
  EXPECT_EQ(lend.units(), kUnits);
  EXPECT_EQ(lend.from_node_id(), "") << "it has them";
  EXPECT_TRUE(lend.stored());
}

TEST_F(LostUnitsLoanTest, WhoHasThemInMemoryIsAskedBeforeWhoHasToReadThem) {
  Join({Lends("d1"), Lends("d2"), TestRegistration("p3", v1::NODE_ROLE_PREFILL), Lends("d4"),
        Lends("d5")});
  Store(3, kUnits * kUnitBlocks, /*on_disk=*/true);
  Store(4, kUnits * kUnitBlocks);
  Store(5, kUnitBlocks);
  WantLost(9, "d2");
  EXPECT_EQ(Asked(4).from_node_id(), "");
  WantLost(10, "d2", {"d4"});
  const v1::LendBlocks read = Asked(5);
  EXPECT_EQ(read.from_node_id(), "p3");
  EXPECT_EQ(read.units(), kUnits) << "more than another has in memory";
}

TEST_F(LostUnitsLoanTest, OfAHolderThatDoesNotLendAnotherNodeFetchesThem) {
  v1::Registration holder = TestRegistration("p3", v1::NODE_ROLE_PREFILL);
  Join({Lends("d1"), Lends("d2"), holder, Lends("d4")});
  // Two units and a part of the third.
  Store(3, 2 * kUnitBlocks + 1);
  WantLost(9, "d2");
  const v1::LendBlocks lend = Asked(4);
  EXPECT_EQ(lend.units(), 2);
  EXPECT_EQ(lend.hashes(), kv::PackHashes(Hashes(2 * kUnitBlocks)));
  EXPECT_EQ(lend.from_node_id(), "p3");
  EXPECT_EQ(lend.from_incarnation(), holder.incarnation());
  EXPECT_FALSE(lend.stored());
  EXPECT_TRUE(harness_.Quiet(2)) << "it has lost them";
}

TEST_F(LostUnitsLoanTest, WithoutAHolderTheDebtorHearsSoAtOnce) {
  Join({Lends("d1"), Lends("d2"), Lends("d3")});
  WantLost(1, "d2");
  ExpectNoHolder();
  Store(3, kUnitBlocks - 1);
  WantLost(2, "d2");
  ExpectNoHolder();
}

TEST_F(LostUnitsLoanTest, NeitherTheDebtorNorWhoLostThemNorAnAvoidedNodeIsAHolder) {
  Join({Lends("d1"), Lends("d2"), Lends("d3"), Lends("d4")});
  for (const uint64_t node : {1, 2, 3}) Store(node, kUnits * kUnitBlocks);
  WantLost(1, "d2", {"d3"});
  ExpectNoHolder();
  WantLost(2, "d2");
  EXPECT_EQ(Asked(3).units(), kUnits);
}

// The holder has left, or has never been here.
TEST_F(LostUnitsLoanTest, AHolderThatLeavesEndsInAnAnswer) {
  Join({Lends("d1"), Lends("d2"), Lends("d3")});
  Store(3, kUnits * kUnitBlocks);
  WantLost(1, "d2");
  EXPECT_EQ(Asked(3).units(), kUnits);
  harness_.Lose(3);
  EXPECT_FALSE(rpc::FromWire(Answer().status()).ok());
}

}  // namespace
}  // namespace tandem::router
