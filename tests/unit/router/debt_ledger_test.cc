// Goal: a router's ledger of debts is soft state that it has from the nodes alone. One that starts
// with nothing knows all debts of a thousand nodes after each has registered and sent one
// heartbeat; two routers agree after a heartbeat without a change; a node that leaves, or starts
// again, takes its debts with it.
#include <map>
#include <random>

#include "tests/testing/printed_seed.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

constexpr uint64_t kNodes = 1000;

std::string NameOf(uint64_t node) { return absl::StrCat("n", node); }

// Blocks and loans by debtor and creditor.
using Ledger = std::map<std::pair<std::string, std::string>, std::pair<int64_t, int64_t>>;

// What the nodes themselves know, and tell routers in their heartbeats.
class Nodes {
 public:
  explicit Nodes(uint64_t seed) : random_(seed) {}

  // New debts for about a third of the nodes, to up to eight creditors each.
  void Draw() {
    for (uint64_t debtor = 1; debtor <= kNodes; ++debtor) {
      if (Below(3) != 0) continue;
      owed_[debtor].clear();
      for (uint64_t i = Below(9); i > 0; --i)
        owed_[debtor][1 + Below(kNodes)] = {1 + Below(4096), 1 + Below(16)};
    }
  }
  v1::NodeMessage Heartbeat(uint64_t node) const {
    v1::NodeMessage message;
    message.mutable_load()->set_blocks_total(100);
    const auto owed = owed_.find(node);
    if (owed == owed_.end()) return message;
    for (const auto& [creditor, debt] : owed->second) {
      v1::Debt& wire = *message.mutable_load()->add_debts();
      wire.set_creditor_node_id(NameOf(creditor));
      wire.set_blocks(static_cast<int64_t>(debt.first));
      wire.set_loans(static_cast<int64_t>(debt.second));
    }
    return message;
  }
  Ledger ledger() const {
    Ledger ledger;
    for (const auto& [debtor, owed] : owed_)
      for (const auto& [creditor, debt] : owed) ledger[{NameOf(debtor), NameOf(creditor)}] = debt;
    return ledger;
  }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  std::mt19937_64 random_;
  std::map<uint64_t, std::map<uint64_t, std::pair<uint64_t, uint64_t>>> owed_;
};

Ledger LedgerOf(CoreHarness& router) {
  Ledger ledger;
  const v1::GetStatusResponse status = router.core().GetStatus(router.now());
  for (const v1::NodeStatus& node : status.nodes()) {
    if (node.state() == "lost") continue;  // what it said last
    for (const v1::Debt& debt : node.load().debts()) {
      const auto [it, added] =
          ledger.insert({{node.node_id(), debt.creditor_node_id()}, {debt.blocks(), debt.loans()}});
      EXPECT_TRUE(added) << node.node_id() << " owes " << debt.creditor_node_id() << " twice";
    }
  }
  return ledger;
}

void JoinAll(CoreHarness& router) {
  for (uint64_t node = 1; node <= kNodes; ++node)
    ASSERT_OK(router.Join(node, TestRegistration(NameOf(node), v1::NODE_ROLE_DECODE)));
}

void HearAll(CoreHarness& router, const Nodes& nodes) {
  for (uint64_t node = 1; node <= kNodes; ++node) router.SayMessage(node, nodes.Heartbeat(node));
}

TEST(DebtLedger, IsWholeAfterOneHeartbeatOfAThousandNodes) {
  Nodes nodes(testing::PrintedSeed());
  nodes.Draw();
  CoreHarness first;
  JoinAll(first);
  HearAll(first, nodes);
  ASSERT_GT(nodes.ledger().size(), kNodes / 3);
  EXPECT_EQ(LedgerOf(first), nodes.ledger());
  // Debts change while the first router runs. Another one starts with nothing.
  nodes.Draw();
  CoreHarness second;
  JoinAll(second);
  EXPECT_TRUE(LedgerOf(second).empty());
  HearAll(second, nodes);
  EXPECT_EQ(LedgerOf(second), nodes.ledger());
  // The first one has not heard of the changes. A heartbeat without one more makes them agree.
  EXPECT_NE(LedgerOf(first), nodes.ledger());
  HearAll(first, nodes);
  EXPECT_EQ(LedgerOf(first), LedgerOf(second));
}

TEST(DebtLedger, ANodeThatLeavesOrStartsAgainTakesItsDebtsWithIt) {
  const auto owes = [](int64_t blocks) {
    v1::NodeMessage message;
    v1::Debt& debt = *message.mutable_load()->add_debts();
    debt.set_creditor_node_id("c");
    debt.set_blocks(blocks);
    debt.set_loans(1);
    return message;
  };
  CoreHarness router;
  for (const auto& [key, id] : {std::pair(1, "a"), std::pair(2, "b"), std::pair(3, "c")})
    router.JoinDecode(static_cast<uint64_t>(key), id);
  router.SayMessage(1, owes(4));
  router.SayMessage(2, owes(7));
  const Ledger::value_type of_a = {{"a", "c"}, {4, 1}}, of_b = {{"b", "c"}, {7, 1}};
  EXPECT_EQ(LedgerOf(router), (Ledger{of_a, of_b}));
  router.Lose(3);
  EXPECT_EQ(LedgerOf(router), (Ledger{of_a, of_b})) << "the debtors say when a debt is over";
  router.Lose(1);
  EXPECT_EQ(LedgerOf(router), (Ledger{of_b}));
  ASSERT_OK(router.Join(4, TestRegistration("b", v1::NODE_ROLE_DECODE, /*incarnation=*/2)));
  EXPECT_TRUE(LedgerOf(router).empty()) << "another run of the node owes nothing";
}

}  // namespace
}  // namespace tandem::router
