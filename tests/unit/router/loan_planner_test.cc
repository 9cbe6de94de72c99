// Goal: the planner orders a loan only if the predicted tokens a second of both nodes rise by more
// than its threshold, of blocks that both nodes have, in whole units; it takes the better of two
// creditors; it never turns a creditor into a debtor, or the reverse, soon after. Random fleets are
// compared with the definition.
#include "router/core/loan_planner.h"

#include <iostream>
#include <random>

#include "tests/testing/status_matchers.h"
#include "tests/unit/router/fixtures.h"

namespace tandem::router {
namespace {

constexpr int kUnitTokens = 16;  // 4 blocks

class LoanPlannerTest : public ::testing::Test {
 protected:
  Node& Join(const std::string& id, int64_t num_blocks = 1000) {
    v1::Registration registration = TestRegistration(id, v1::NODE_ROLE_DECODE);
    registration.set_num_blocks(num_blocks);
    registration.set_lending_address("unix:" + id + " tcp:" + id);
    registration.set_lend_blocks_max(num_blocks / 2);
    registration.set_lending_unit_tokens(kUnitTokens);
    Node& node = fleet_.Join(NodeKey(++last_key_), registration, now_);
    fleet_.OnStepCost(node, {.step_us = 5000,
                             .prompt_row_us = 1,
                             .generated_row_us = 10,
                             .generated_attended_us = 0.1});
    return node;
  }
  // A node that runs so many sequences in so many blocks.
  void Load(Node& node, int64_t sequences, int64_t used, int64_t lendable, int64_t lent = 0) {
    v1::NodeLoad load;
    load.set_blocks_total(node.num_blocks);
    load.set_blocks_free(node.num_blocks - used);
    load.set_blocks_used(used);
    load.set_blocks_lent(lent);
    load.set_sequences_running(sequences);
    fleet_.OnLoad(node, load);
    fleet_.OnLendable(node, lendable);
  }
  // Two long sequences fill the first node; the second has room, and no sequence slot.
  void MakeSkewed() {
    Load(Join("long"), 2, 990, 900);
    Load(Join("short"), 16, 100, 0);
  }

  absl::Time now_ = absl::FromUnixSeconds(1000);
  FirstOfEqual random_;
  const ModelIdentity model_ = TestModel();
  Fleet fleet_{model_, {.nodes_max = 100}, random_};
  RouterActions actions_;
  LoanPlanner planner_{fleet_, actions_};
  uint64_t last_key_ = 0;
};

const std::vector<int64_t> kWaiting(20, 40);  // sequences of 10 blocks

TEST_F(LoanPlannerTest, ANodeOfLongSequencesBorrowsWhenOthersWait) {
  MakeSkewed();
  planner_.OnTick(kWaiting, now_);
  ASSERT_EQ(actions_.commands.size(), 1u);
  EXPECT_EQ(actions_.commands[0].first, NodeKey(1));
  const v1::BorrowBlocks& borrow = actions_.commands[0].second.borrow_blocks();
  EXPECT_EQ(borrow.creditor_node_id(), "short");
  // 14 more sequences, until its slots are taken, need 11 blocks each; 10 are free.
  EXPECT_EQ(borrow.blocks(), (14 * 11 - 10 + 3) / 4 * 4);
}

TEST_F(LoanPlannerTest, ThereIsNoPlanWithoutNeedRoomOrGain) {
  MakeSkewed();
  Node& borrower = *fleet_.Find(NodeKey(1));
  Node& lender = *fleet_.Find(NodeKey(2));
  EXPECT_TRUE(planner_.Best(kWaiting, now_).has_value());
  EXPECT_FALSE(planner_.Best({}, now_).has_value()) << "nothing waits";
  Load(borrower, 16, 990, 900);
  EXPECT_FALSE(planner_.Best(kWaiting, now_).has_value()) << "no slot is free";
  Load(borrower, 2, 990, 0);
  EXPECT_FALSE(planner_.Best(kWaiting, now_).has_value()) << "it has nothing to lend";
  Load(borrower, 2, 990, 900, /*lent=*/4);
  EXPECT_FALSE(planner_.Best(kWaiting, now_).has_value()) << "it lends itself";
  Load(borrower, 2, 990, 900);
  Load(lender, 16, 870, 0);
  EXPECT_FALSE(planner_.Best(kWaiting, now_).has_value()) << "the reserve is not lent";
  Load(lender, 16, 100, 0);
  fleet_.SetDraining(lender);
  EXPECT_FALSE(planner_.Best(kWaiting, now_).has_value()) << "it drains";
}

// Attention decides what these steps cost: what joins the batch only makes it slower.
TEST_F(LoanPlannerTest, WhereABatchGainsNothingNothingIsLent) {
  MakeSkewed();
  for (const uint64_t key : {1, 2})
    fleet_.OnStepCost(*fleet_.Find(NodeKey(key)), {.prompt_row_us = 1, .generated_row_us = 1000});
  EXPECT_FALSE(planner_.Best(kWaiting, now_).has_value());
}

TEST_F(LoanPlannerTest, ASlowCreditorIsNotTakenWhereAQuickOneIs) {
  MakeSkewed();
  Load(Join("slow"), 16, 90, 0);
  fleet_.OnStepCost(*fleet_.Find(NodeKey(3)),
                    {.step_us = 5000, .generated_row_us = 10, .generated_attended_us = 50});
  const auto plan = planner_.Best(kWaiting, now_);
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->creditor->id.value(), "short");
}

TEST_F(LoanPlannerTest, APlanSettlesBeforeTheNextAndRolesStay) {
  MakeSkewed();
  planner_.OnTick(kWaiting, now_);
  EXPECT_FALSE(planner_.Best(kWaiting, now_ + LoanPlanner::kSettle / 2).has_value());
  EXPECT_TRUE(planner_.Best(kWaiting, now_ + LoanPlanner::kSettle).has_value());
  // The other way round it would pay now.
  Load(*fleet_.Find(NodeKey(2)), 2, 990, 900);
  Load(*fleet_.Find(NodeKey(1)), 16, 100, 0);
  EXPECT_FALSE(planner_.Best(kWaiting, now_ + LoanPlanner::kRoleKept / 2).has_value());
  EXPECT_TRUE(planner_.Best(kWaiting, now_ + LoanPlanner::kRoleKept).has_value());
}

// Tokens a microsecond of both nodes by the definition in the header, with `more` sequences and
// `lent` tokens moved.
double Together(const Node& debtor, const Node& creditor, int64_t more, int64_t tokens,
                int64_t lent) {
  const auto attended = [](const Node& node) {
    return (node.load.blocks_used() - node.load.blocks_lent()) * node.block_tokens;
  };
  const double creditor_us = creditor.GenerateUs(creditor.sequences(), attended(creditor));
  const double answer_us =
      lent == 0 ? 0 : creditor.step_cost->generated_attended_us * static_cast<double>(lent);
  double debtor_us =
      std::max(debtor.GenerateUs(debtor.sequences() + more,
                                 std::max<int64_t>(0, attended(debtor) + tokens - lent)),
               answer_us);
  if (lent > 0 && debtor.load.debts().empty()) debtor_us *= LoanPlanner::kSlowdown;
  const double share = lent == 0 ? 0 : std::min(answer_us / debtor_us, LoanPlanner::kComputeShare);
  return static_cast<double>(debtor.sequences() + more) / debtor_us +
         static_cast<double>(creditor.sequences()) / creditor_us * (1 - share);
}

TEST_F(LoanPlannerTest, RandomFleetsGetOnlyPlansThatPay) {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 draw(seed);
  const auto below = [&](int64_t n) {
    return static_cast<int64_t>(draw() % static_cast<uint64_t>(n));
  };
  for (int i = 0; i < 5; ++i) Join("n" + std::to_string(i));
  std::map<std::string, std::pair<bool, absl::Time>> roles;  // was debtor, when
  int plans = 0;
  for (int round = 0; round < 20000; ++round) {
    now_ += absl::Milliseconds(below(400));
    for (const Node* chosen : fleet_.nodes()) {
      Node& node = *fleet_.Find(chosen->key);
      const int64_t used = below(node.num_blocks + 1), sequences = 1 + below(16);
      Load(node, sequences, used, below(3) == 0 ? 0 : below(used + 1),
           below(4) == 0 ? below(used + 1) : 0);
      fleet_.OnStepCost(node, {.step_us = static_cast<double>(below(10000)),
                               .prompt_row_us = 1,
                               .generated_row_us = static_cast<double>(1 + below(500)),
                               .generated_attended_us = static_cast<double>(below(100)) / 100});
    }
    std::vector<int64_t> waiting(static_cast<size_t>(below(40)));
    for (int64_t& tokens : waiting) tokens = 1 + below(800);
    const auto best = planner_.Best(waiting, now_);
    if (!best.has_value()) continue;
    ++plans;
    const Node &debtor = *best->debtor, &creditor = *best->creditor;
    ASSERT_NE(&debtor, &creditor);
    ASSERT_GT(best->blocks, 0);
    ASSERT_EQ(best->blocks % (kUnitTokens / kBlockTokens), 0);
    ASSERT_LE(best->blocks, debtor.blocks_lendable);
    ASSERT_LE(best->blocks, creditor.lend_blocks_max - creditor.load.blocks_lent());
    ASSERT_LE(best->blocks, creditor.blocks_available() - creditor.num_blocks / 8);
    ASSERT_LE(debtor.sequences() + best->sequences, debtor.max_sequences);
    ASSERT_EQ(debtor.load.blocks_lent(), 0);
    int64_t tokens = 0;
    for (int64_t i = 0; i < best->sequences; ++i) tokens += waiting[static_cast<size_t>(i)];
    const double before = Together(debtor, creditor, 0, 0, 0);
    const double after =
        Together(debtor, creditor, best->sequences, tokens, best->blocks * kBlockTokens);
    ASSERT_NEAR(after / before - 1, best->gain, 1e-9);
    ASSERT_GT(best->gain, LoanPlanner::kGainMin);

    const int64_t ordered = planner_.plans();
    planner_.OnTick(waiting, now_);
    if (planner_.plans() == ordered) continue;
    for (const auto& [id, is_debtor] :
         {std::pair(debtor.id.value(), true), std::pair(creditor.id.value(), false)}) {
      const auto was = roles.find(id);
      if (was != roles.end() && was->second.first != is_debtor) {
        ASSERT_GE(now_ - was->second.second, LoanPlanner::kRoleKept) << id;
      }
      roles[id] = {is_debtor, now_};
    }
  }
  EXPECT_GT(plans, 100);
}

}  // namespace
}  // namespace tandem::router
