// Goal: what a node lends counts for the debtors that can ask it: those of its numerics, on its
// host, or anywhere if it has a TCP address. No other node is asked for a loan, planned with, or
// counted in what a node can hold.
#include <random>

#include "router/core/loan_planner.h"
#include "tests/unit/router/loan_broker_fixture.h"

namespace tandem::router {
namespace {

class LendingReachTest : public LoanBrokerTest {
 protected:
  // Lends to nodes of its host only.
  static v1::Registration LendsHere(const std::string& id, const std::string& host) {
    v1::Registration registration = Lends(id, host);
    registration.set_lending_address("unix:" + id);
    return registration;
  }
  int64_t BorrowBlocksMax(uint64_t node) {
    return harness_.core().fleet().Find(NodeKey(node))->borrow_blocks_max;
  }
};

TEST_F(LendingReachTest, ANodeOfAnotherHostIsAskedOverTcpOnly) {
  Join({LendsHere("d1", "a"), LendsHere("d2", "b")});
  Want(1);
  EXPECT_EQ(Asked(), 0u);
  EXPECT_EQ(rpc::FromWire(Answer().status()).code(), absl::StatusCode::kResourceExhausted);
  Join({LendsHere("d3", "a")});
  Want(2);
  EXPECT_EQ(Asked(), 3u);
  Offer(3, 2, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(Asked(), 0u);
  Answer();
  Join({Lends("d4", "b")});
  Report(3, [](v1::NodeLoad& load) { load.set_blocks_free(0); });
  Want(3);
  EXPECT_EQ(Asked(), 4u);
}

TEST_F(LendingReachTest, ARivalOfAnotherHostIsNotAskedEither) {
  Join({LendsHere("d1", "a"), LendsHere("d2", "b"), LendsHere("d3", "a")});
  for (const uint64_t node : {2, 3})
    Report(node, [](v1::NodeLoad& load) { load.add_debts()->set_blocks(1); });
  v1::NodeEvent event;
  v1::LoanWanted& wanted = *event.mutable_loan_wanted();
  wanted.set_loan(1);
  wanted.set_units(1);
  wanted.set_arrived_us(50);
  wanted.set_hashes(kv::PackHashes(Hashes(16)));
  harness_.Say(1, {event});
  EXPECT_EQ(Asked(), 3u);
  Offer(3, 1, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(Asked(), 0u);
}

TEST_F(LendingReachTest, WhatCannotBeAskedDoesNotCountTowardsWhatANodeCanHold) {
  Join({LendsHere("d1", "a"), LendsHere("d2", "b")});
  EXPECT_EQ(BorrowBlocksMax(1), 0);
  EXPECT_EQ(BorrowBlocksMax(2), 0);
  Join({Lends("d3", "b")});
  EXPECT_EQ(BorrowBlocksMax(1), kLendable);
  EXPECT_EQ(BorrowBlocksMax(2), kLendable);
  EXPECT_EQ(BorrowBlocksMax(3), kLendable) << "d2 is on its host";
  const Fleet& fleet = harness_.core().fleet();
  const auto node = [&](uint64_t key) -> const Node& { return *fleet.Find(NodeKey(key)); };
  EXPECT_EQ(fleet.SpareBeside(node(1), node(2), 1), kLendable * kBorrowedShareMax / 100);
  EXPECT_EQ(fleet.SpareBeside(node(1), node(3), 1), 0) << "d2 cannot lend to d1";
}

TEST_F(LendingReachTest, SumsAreThoseOfTheNodesThatCanBeAsked) {
  std::mt19937 random(7);
  FirstOfEqual ties;
  Fleet fleet(TestModel(), {.nodes_max = 64, .allow_mixed_numerics = true}, ties);
  for (uint64_t key = 1; key <= 60; ++key) {
    const std::string id = absl::StrCat("n", key), host = absl::StrCat("h", random() % 4);
    v1::Registration registration = random() % 2 == 0 ? Lends(id, host) : LendsHere(id, host);
    registration.set_numerics_id(random() % 3 == 0 ? "gpu" : "cpu");
    registration.set_lend_blocks_max(static_cast<int64_t>(random() % 50));
    if (random() % 4 == 0) registration.set_role(v1::NODE_ROLE_PREFILL);
    Node& node = fleet.Join(NodeKey(key), registration, absl::UnixEpoch());
    if (random() % 5 == 0) fleet.SetDraining(node);
  }
  fleet.BeyondPoolPlaced(NodeKey(3), 0);
  for (const Node* debtor : fleet.nodes()) {
    int64_t most = 0, spare = 0;
    for (const Node* creditor : fleet.nodes()) {
      const bool asked = creditor != debtor && !creditor->draining && creditor->CanLendTo(*debtor);
      if (!asked) continue;
      most += creditor->lend_blocks_max;
      spare += creditor->legs_beyond_pool > 0 ? 0 : creditor->lend_blocks_max;
    }
    EXPECT_EQ(debtor->borrow_blocks_max, most) << debtor->id.value();
    if (debtor->role != v1::NODE_ROLE_DECODE || debtor->legs_beyond_pool > 0) continue;
    EXPECT_EQ(debtor->borrow_blocks_now, spare * kBorrowedShareMax / 100) << debtor->id.value();
  }
}

// Two long sequences fill the first node; the second has room, and requests wait.
TEST_F(LendingReachTest, NoPlanIsMadeWithANodeThatCannotBeAsked) {
  for (const std::string host : {"a", "b"}) {
    FirstOfEqual ties;
    Fleet fleet(TestModel(), {.nodes_max = 4}, ties);
    RouterActions actions;
    LoanPlanner planner(fleet, actions);
    for (const auto& [key, used, sequences] : {std::tuple(1, 990, 2), std::tuple(2, 100, 16)}) {
      v1::Registration registration = LendsHere(absl::StrCat("d", key), key == 1 ? "a" : host);
      registration.set_num_blocks(1000);
      registration.set_lend_blocks_max(500);
      registration.set_lending_unit_tokens(16);
      const absl::Time now = absl::FromUnixSeconds(1000);
      Node& node = fleet.Join(NodeKey(static_cast<uint64_t>(key)), registration, now);
      fleet.OnStepCost(node, {.step_us = 5000,
                              .prompt_row_us = 1,
                              .generated_row_us = 10,
                              .generated_attended_us = 0.1});
      v1::NodeLoad load;
      load.set_blocks_total(1000);
      load.set_blocks_free(1000 - used);
      load.set_blocks_used(used);
      load.set_sequences_running(sequences);
      fleet.OnLoad(node, load);
      fleet.OnLendable(node, key == 1 ? 900 : 0);
    }
    const std::vector<int64_t> waiting(20, 40);
    EXPECT_EQ(planner.Best(waiting, absl::FromUnixSeconds(1000)).has_value(), host == "a") << host;
  }
}

}  // namespace
}  // namespace tandem::router
