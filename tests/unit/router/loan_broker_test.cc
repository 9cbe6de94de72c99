// Goal: a node that wants a loan gets one answer, from the best creditor that takes it on: those
// that hold the blocks, then its host's, then the emptiest. Refusals go to the next one, deadlines
// and lost nodes end in an answer. What nodes lend counts towards what decode nodes can hold.
#include "router/core/loan_broker.h"

#include "common/cost/loan_time.h"
#include "tests/unit/router/loan_broker_fixture.h"

namespace tandem::router {
namespace {

TEST_F(LoanBrokerTest, ACreditorsOfferReachesTheDebtor) {
  Join({Lends("d1"), Lends("d2")});
  Want(5);
  EXPECT_EQ(Asked(), 2u);
  Offer(2, 5, absl::OkStatus());
  const v1::LoanAnswer answer = Answer();
  EXPECT_EQ(answer.loan(), 5u);
  EXPECT_OK(rpc::FromWire(answer.status()));
  EXPECT_EQ(answer.creditor_node_id(), "d2");
  EXPECT_EQ(answer.lending_address(), "unix:d2 tcp:d2");
  EXPECT_EQ(answer.lease_id(), 77u);
  EXPECT_EQ(answer.held_blocks(), 3);
  EXPECT_EQ(answer.units(), 1);
  Offer(2, 5, absl::OkStatus());  // twice: ignored
  EXPECT_TRUE(harness_.Quiet(1));
}

TEST_F(LoanBrokerTest, HoldersComeFirstThenTheHostThenFreeMemory) {
  Join({Lends("d1"), Lends("d2", "b"), Lends("d3"), Lends("d4"), Lends("d5", "b")});
  Report(3, [](v1::NodeLoad& load) { load.set_blocks_free(60); });
  v1::NodeEvent stored;
  stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(Hashes(4)));
  harness_.Say(5, {stored});
  Want(1);
  std::vector<uint64_t> asked;
  for (uint64_t node = Asked(); node != 0; node = Asked()) {
    asked.push_back(node);
    Offer(node, 1, absl::ResourceExhaustedError("full"));
  }
  EXPECT_EQ(asked, (std::vector<uint64_t>{5, 4, 3}));
  const absl::Status status = rpc::FromWire(Answer().status());
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("node d3: full"));
}

TEST_F(LoanBrokerTest, ALoanThatMovesGoesToANodeWithRoomForAllOfItAndNotBack) {
  Join({Lends("d1"), Lends("d2"), Lends("d3"), Lends("d4")});
  // One unit is 16 blocks: d3 can take one of two, which is not enough for a loan that moves.
  Report(3, [](v1::NodeLoad& load) { load.set_blocks_lent(kLendable - 20); });
  v1::NodeEvent event;
  v1::LoanWanted& wanted = *event.mutable_loan_wanted();
  wanted.set_loan(8);
  wanted.set_first_unit(4);
  wanted.set_units(2);
  wanted.set_hashes(kv::PackHashes(Hashes(32)));
  wanted.set_from_node_id("d2");
  wanted.set_from_incarnation(9);
  harness_.Say(1, {event});
  EXPECT_TRUE(harness_.Quiet(2) && harness_.Quiet(3));
  const v1::NodeCommand asked = harness_.Next(4);
  ASSERT_TRUE(asked.has_lend_blocks());
  EXPECT_EQ(asked.lend_blocks().from_node_id(), "d2");
  EXPECT_EQ(asked.lend_blocks().from_incarnation(), 9u);
  EXPECT_EQ(asked.lend_blocks().units(), 2);
  // It fetches the blocks from the node that the loan leaves.
  v1::NodeEvent fetch;
  v1::BlocksWanted& blocks = *fetch.mutable_blocks_wanted();
  blocks.set_from_node_id("d2");
  blocks.set_from_incarnation(Lends("d2").incarnation());
  blocks.set_hashes(kv::PackHashes(Hashes(32)));
  blocks.set_lease_id(3);
  blocks.set_fetch(true);
  blocks.set_lent(true);
  harness_.Say(4, {fetch});
  const v1::NodeCommand send = harness_.Next(2);
  ASSERT_TRUE(send.has_send_blocks());
  EXPECT_TRUE(send.send_blocks().fetch() && send.send_blocks().lent());
  EXPECT_EQ(send.send_blocks().receiver_node_id(), "d4");
}

// A prompt's decode node takes over a loan: the creditor has no room beside what it lends already,
// and is asked first all the same. Another node fetches the blocks from it.
TEST_F(LoanBrokerTest, ALoanThatIsTakenOverStaysWhereItIsOrIsFetchedFromThere) {
  Join({Lends("d1"), Lends("d2"), Lends("d3")});
  Report(2, [](v1::NodeLoad& load) { load.set_blocks_lent(kLendable); });
  v1::NodeEvent event;
  v1::LoanWanted& wanted = *event.mutable_loan_wanted();
  wanted.set_loan(8);
  wanted.set_units(2);
  wanted.set_hashes(kv::PackHashes(Hashes(32)));
  wanted.set_prefer_node_id("d2");
  wanted.set_from_node_id("d2");
  wanted.set_from_incarnation(9);
  harness_.Say(1, {event});
  const v1::NodeCommand first = harness_.Next(2);
  ASSERT_TRUE(first.has_lend_blocks());
  EXPECT_EQ(first.lend_blocks().from_node_id(), "") << "it fetches nothing from itself";
  Offer(2, 8, absl::ResourceExhaustedError("its own sequences wait"));
  const v1::NodeCommand second = harness_.Next(3);
  ASSERT_TRUE(second.has_lend_blocks());
  EXPECT_EQ(second.lend_blocks().from_node_id(), "d2");
  EXPECT_EQ(second.lend_blocks().from_incarnation(), 9u);
}

// Of two nodes whose sequences lack memory, the one that came later may have to give way: its node
// is asked although it has nothing to lend.
TEST_F(LoanBrokerTest, NodesThatLackMemoryThemselvesAreAskedLast) {
  Join({Lends("d1"), Lends("d2"), Lends("d3"), Lends("d4")});
  Report(2, [](v1::NodeLoad& load) { load.add_debts()->set_blocks(1); });
  Report(3, [](v1::NodeLoad& load) { load.set_blocks_free(0); });
  const auto asked = [&](uint64_t loan, int64_t arrived_us, const std::string& avoid = "") {
    v1::NodeEvent event;
    v1::LoanWanted& wanted = *event.mutable_loan_wanted();
    wanted.set_loan(loan);
    wanted.set_units(1);
    wanted.set_hashes(kv::PackHashes(Hashes(16)));
    wanted.set_arrived_us(arrived_us);
    if (!avoid.empty()) wanted.add_avoid_node_ids(avoid);
    harness_.Say(1, {event});
    std::vector<uint64_t> nodes;
    for (uint64_t node = Asked(); node != 0; node = Asked()) {
      nodes.push_back(node);
      Offer(node, loan, absl::ResourceExhaustedError("full"));
    }
    Answer();
    return nodes;
  };
  EXPECT_EQ(asked(1, 0), std::vector<uint64_t>{4}) << "of unknown age";
  EXPECT_EQ(asked(2, 50), (std::vector<uint64_t>{4, 2}));
  // d3's own question finds no creditor: it lacks memory, too, for a while. Not if it was a plan's.
  Report(4, [](v1::NodeLoad& load) { load.set_blocks_free(0); });
  Report(1, [](v1::NodeLoad& load) { load.set_blocks_free(0); });
  v1::NodeEvent event;
  event.mutable_loan_wanted()->set_loan(9);
  event.mutable_loan_wanted()->set_units(1);
  event.mutable_loan_wanted()->set_hashes(kv::PackHashes(Hashes(16)));
  harness_.Say(3, {event});
  EXPECT_TRUE(harness_.Next(3).has_loan_answer());
  EXPECT_EQ(asked(11, 50), std::vector<uint64_t>{2});
  event.mutable_loan_wanted()->set_loan(12);
  event.mutable_loan_wanted()->set_arrived_us(60);
  for (const char* id : {"d1", "d2"}) event.mutable_loan_wanted()->add_avoid_node_ids(id);
  harness_.Say(3, {event});
  EXPECT_TRUE(harness_.Next(3).has_loan_answer());
  EXPECT_THAT(asked(3, 50), ::testing::UnorderedElementsAre(2u, 3u));
  // A split prompt's receiver: what it kept for the prompt's sender would be of no use to it.
  EXPECT_EQ(asked(10, 50, "d3"), std::vector<uint64_t>{2});
  for (int i = 0; i < 5; ++i) {
    harness_.Advance(LoanBroker::kUnmetKept / 4);
    for (uint64_t node = 1; node <= nodes_; ++node)
      Report(node, [&](v1::NodeLoad& load) {
        load.set_blocks_free(0);
        if (node == 2) load.add_debts()->set_blocks(1);
      });
  }
  EXPECT_EQ(asked(4, 50), std::vector<uint64_t>{2});
}

// Prints what a question costs; no bound is checked, because other programs may run.
TEST_F(LoanBrokerTest, PrintsWhatAQuestionCostsWithAThousandNodes) {
  FirstOfEqual random;
  Fleet fleet(TestModel(), {.nodes_max = 1024, .allow_mixed_numerics = true}, random);
  const PrefixIndex index(PrefixIndex::Options{});
  RouterActions actions;
  LoanBroker broker(fleet, index, actions);
  for (uint64_t key = 1; key <= 1000; ++key) {
    Node& node = fleet.Join(NodeKey(key), Lends(absl::StrCat("d", key)), absl::UnixEpoch());
    v1::NodeLoad load;
    load.set_blocks_total(100);
    load.set_blocks_free(static_cast<int64_t>(50 + key % 50));
    fleet.OnLoad(node, load);
  }
  v1::LoanWanted wanted;
  wanted.set_units(1);
  wanted.set_hashes(kv::PackHashes(Hashes(16)));
  wanted.set_arrived_us(1);
  absl::Duration least = absl::InfiniteDuration();
  for (uint64_t loan = 1; loan <= LoanBroker::kQuestionsMax; ++loan) {
    wanted.set_loan(loan);
    const absl::Time start = absl::Now();
    ASSERT_OK(broker.OnLoanWanted(*fleet.Find(NodeKey(1)), wanted, absl::UnixEpoch()));
    least = std::min(least, absl::Now() - start);
  }
  std::cout << "a question of one of 1,000 nodes: " << least << " at best\n";
  // Of those with the most free blocks, the first by id.
  EXPECT_EQ(actions.commands.back().first, NodeKey(149));
}

TEST_F(LoanBrokerTest, NodesThatCannotLendAreNotAsked) {
  v1::Registration never = Lends("d2");
  never.clear_lending_address();
  never.set_lend_blocks_max(0);
  Join({Lends("d1"), never, Lends("d3"), Lends("d4"), Lends("d5")});
  Report(3, [](v1::NodeLoad& load) { load.set_blocks_lent(kLendable - 3); });
  Report(4, [](v1::NodeLoad& load) { load.add_debts()->set_blocks(1); });
  Want(1, /*avoid=*/{"d5"});
  EXPECT_EQ(Asked(), 0u);
  EXPECT_EQ(rpc::FromWire(Answer().status()).code(), absl::StatusCode::kResourceExhausted);
}

// Its KV would change the debtor's tokens.
TEST(LoanBroker, ANodeOfOtherNumericsIsNotAsked) {
  FirstOfEqual random;
  Fleet fleet(TestModel(), {.nodes_max = 8, .allow_mixed_numerics = true}, random);
  const PrefixIndex index(PrefixIndex::Options{});
  RouterActions actions;
  LoanBroker broker(fleet, index, actions);
  for (const auto& [key, numerics] : {std::pair(1, "cpu"), {2, "gpu"}, {3, "cpu"}}) {
    v1::Registration registration = TestRegistration(absl::StrCat("d", key), v1::NODE_ROLE_DECODE);
    registration.set_numerics_id(numerics);
    registration.set_lending_address("unix:here tcp:here");
    registration.set_lend_blocks_max(kLendable);
    fleet.Join(NodeKey(static_cast<uint64_t>(key)), registration, absl::UnixEpoch());
  }
  v1::LoanWanted wanted;
  wanted.set_units(1);
  wanted.set_hashes(std::string(16 * 16, 'h'));
  ASSERT_OK(broker.OnLoanWanted(*fleet.Find(NodeKey(1)), wanted, absl::UnixEpoch()));
  ASSERT_EQ(actions.commands.size(), 1u);
  EXPECT_EQ(actions.commands[0].first, NodeKey(3));
  broker.OnNodeLost(NodeKey(3), absl::UnixEpoch());
  ASSERT_EQ(actions.commands.size(), 2u);
  EXPECT_TRUE(actions.commands[1].second.has_loan_answer()) << "nobody else can lend";
}

TEST_F(LoanBrokerTest, AvoidedNodesDoNotTakeThePlacesOfOthers) {
  Join({Lends("d1"), Lends("d2"), Lends("d3"), Lends("d4"), Lends("d5", "b")});
  Want(1, /*avoid=*/{"d2", "d3", "d4"});
  EXPECT_EQ(Asked(), 5u) << "the three best are avoided";
}

TEST_F(LoanBrokerTest, LoansBeyondTheBoundEndTheStream) {
  Join({Lends("d1"), Lends("d2")});
  const auto want = [&](size_t blocks) {
    v1::NodeEvent event;
    v1::LoanWanted& wanted = *event.mutable_loan_wanted();
    wanted.set_loan(blocks);
    wanted.set_units(static_cast<int32_t>(std::max<size_t>(blocks, 1)));
    wanted.set_hashes(std::string(blocks * 16, 'h'));
    harness_.Say(1, {event});
    return harness_.core().fleet().Find(NodeKey(1)) != nullptr;
  };
  EXPECT_TRUE(want(LoanBroker::kBlocksMax));
  EXPECT_EQ(Asked(), 2u);
  EXPECT_FALSE(want(LoanBroker::kBlocksMax + 1)) << "a node that asks for it is not one of ours";
}

TEST_F(LoanBrokerTest, ALostCreditorIsFollowedByTheNext) {
  Join({Lends("d1"), Lends("d2"), Lends("d3")});
  Want(1);
  const uint64_t first = Asked();
  harness_.Lose(first);
  const uint64_t second = Asked();
  EXPECT_EQ(first + second, 5u);
  harness_.Lose(second);
  EXPECT_EQ(rpc::FromWire(Answer().status()).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LoanBrokerTest, ASilentCreditorsTimeIsBounded) {
  Join({Lends("d1"), Lends("d2")});
  Want(1);
  EXPECT_EQ(Asked(), 2u);
  harness_.Advance(LoanBroker::kTimeMax + absl::Milliseconds(1));
  EXPECT_EQ(rpc::FromWire(Answer().status()).code(), absl::StatusCode::kDeadlineExceeded);
  Offer(2, 1, absl::OkStatus());  // late: the creditor's loan expires by itself
  EXPECT_TRUE(harness_.Quiet(1));
}

TEST_F(LoanBrokerTest, ASilentCreditorIsFollowedByTheNext) {
  Join({Lends("d1"), Lends("d2"), Lends("d3"), Lends("d4")});
  Want(1);
  const uint64_t first = Asked();
  harness_.Advance(LoanBroker::kFirstTime - absl::Milliseconds(1));
  EXPECT_EQ(Asked(), 0u) << "it may wait for blocks for a second";
  harness_.Advance(absl::Milliseconds(2));
  const uint64_t second = Asked();
  ASSERT_NE(second, 0u);
  harness_.Advance(LoanBroker::kNextTime);
  const uint64_t third = Asked();
  EXPECT_EQ(first + second + third, 2u + 3u + 4u);
  Offer(first, 1, absl::OkStatus());  // late: the creditors' loans expire by themselves
  Offer(second, 1, absl::OkStatus());
  EXPECT_TRUE(harness_.Quiet(1));
  Offer(third, 1, absl::OkStatus());
  EXPECT_EQ(Answer().creditor_node_id(), absl::StrCat("d", third));
}

// Its next creditor fetches the blocks before it answers.
TEST_F(LoanBrokerTest, ALoanThatMovesHasTimeForItsBytes) {
  for (const std::string id : {"d1", "d2", "d3"}) {
    v1::Registration node = Lends(id);
    node.set_kv_bytes_per_block(1 << 24);
    Join({node});
  }
  v1::NodeEvent event;
  v1::LoanWanted& wanted = *event.mutable_loan_wanted();
  wanted.set_loan(8);
  wanted.set_units(1);
  wanted.set_hashes(kv::PackHashes(Hashes(16)));
  wanted.set_from_node_id("d2");
  harness_.Say(1, {event});
  EXPECT_EQ(Asked(), 3u);
  harness_.Advance(LoanBroker::kTimeMax + cost::LoanBytesTime(1 << 28) - absl::Milliseconds(1));
  EXPECT_TRUE(harness_.Quiet(1));
  harness_.Advance(absl::Milliseconds(2));
  EXPECT_EQ(rpc::FromWire(Answer().status()).code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(LoanBrokerTest, QuestionsBeyondTheBoundAreRefusedAtOnce) {
  Join({Lends("d1"), Lends("d2")});
  for (uint64_t loan = 1; loan <= LoanBroker::kQuestionsMax; ++loan) Want(loan);
  EXPECT_TRUE(harness_.Quiet(1));
  Want(LoanBroker::kQuestionsMax + 1);
  const v1::LoanAnswer answer = Answer();
  EXPECT_EQ(answer.loan(), LoanBroker::kQuestionsMax + 1);
  EXPECT_EQ(rpc::FromWire(answer.status()).code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(LoanBrokerTest, WhatOthersLendCountsTowardsWhatANodeCanHold) {
  Join({TestRegistration("d1", v1::NODE_ROLE_DECODE)});
  const int64_t alone = harness_.core().context_tokens();
  Join({Lends("d2"), Lends("d3")});
  const Node* node = harness_.core().fleet().Find(NodeKey(2));
  EXPECT_EQ(node->borrow_blocks_max, kLendable);
  EXPECT_EQ(
      node->capacity_tokens(),
      std::min<int64_t>(node->context_tokens, (node->num_blocks + kLendable) * node->block_tokens));
  EXPECT_EQ(node->prompt_capacity_tokens(),
            std::min<int64_t>(node->context_tokens,
                              (node->num_blocks + kLendable * 3 / 4) * node->block_tokens));
  harness_.Lose(3);
  EXPECT_EQ(node->borrow_blocks_max, 0);
  EXPECT_EQ(harness_.core().context_tokens(), alone);
}

// While nodes join, what they can borrow grows. A request that still does not fit once they have
// settled is refused then, and does not wait for the queue's deadline.
TEST_F(LoanBrokerTest, WhatWaitsForNodesToSettleIsRefusedThen) {
  constexpr int kPool = 60;  // tokens
  v1::Registration first = Lends("d1"), second = Lends("d2");
  for (v1::Registration* node : {&first, &second})
    node->set_num_blocks(kPool / node->block_tokens());
  Join({first, second});
  const int64_t holds = harness_.core().fleet().Find(NodeKey(1))->capacity_tokens();
  ASSERT_LT(holds, 350);
  ASSERT_OK(harness_.Submit("never", 20, static_cast<int>(holds) - 20 + 1));
  ASSERT_OK(harness_.Submit("runs", 20, static_cast<int>(holds) - 20));
  const auto tick = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      harness_.Advance(absl::Seconds(1));
      for (uint64_t node : {1, 2}) harness_.SayMessage(node, {});
    }
  };
  tick(9);
  EXPECT_OK(harness_.client("never").failure);
  tick(3);
  EXPECT_EQ(harness_.client("never").failure.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(harness_.client("never").failure.message()),
              ::testing::HasSubstr(absl::StrCat("largest decode node holds ", holds)));
  EXPECT_OK(harness_.client("runs").failure);
}

// Two prompts that are larger than their nodes' pools would each take half of what both need, and
// wait for each other: the second is placed when the first has ended.
TEST_F(LoanBrokerTest, PromptsBeyondTheirPoolsDoNotWaitForEachOther) {
  constexpr int kPool = 200;  // tokens; the model's context is 400
  v1::Registration first = Lends("d1"), second = Lends("d2");
  for (v1::Registration* node : {&first, &second})
    node->set_num_blocks(kPool / node->block_tokens());
  Join({first, second});
  const auto starts = [&] {
    int count = 0;
    for (uint64_t node : {1, 2})
      while (!harness_.Quiet(node)) count += harness_.Next(node).has_start_decode() ? 1 : 0;
    return count;
  };
  ASSERT_OK(harness_.Submit("a", kPool + 20, 2));
  EXPECT_EQ(starts(), 1);
  ASSERT_OK(harness_.Submit("b", kPool + 20, 2));
  EXPECT_EQ(starts(), 0);
  ASSERT_OK(harness_.Submit("c", 20, 2));
  EXPECT_EQ(starts(), 1) << "others go on";
  harness_.Finish("a", request::FinishReason::kAborted);
  for (uint64_t node : {1, 2}) {
    Report(node, [](v1::NodeLoad& load) {
      load.set_blocks_total(kPool / 4);
      load.set_blocks_free(kPool / 4);
    });
  }
  harness_.Advance(absl::Milliseconds(50));
  EXPECT_EQ(starts(), 1);
}

class SplitPromptTest : public LoanBrokerTest {
 protected:
  static constexpr int kPool = 200;  // tokens, 50 blocks; the model's context is 400
  static v1::Registration Small(const std::string& id, v1::NodeRole role = v1::NODE_ROLE_DECODE) {
    v1::Registration registration = Lends(id);
    registration.set_role(role);
    registration.set_num_blocks(kPool / registration.block_tokens());
    registration.set_lending_unit_tokens(16);
    return registration;
  }
  // The StartDecode of a prompt of 300 tokens, and the node that got it.
  std::pair<uint64_t, v1::StartDecode> Start() {
    EXPECT_OK(harness_.Submit("long", 300, 10));
    for (uint64_t node = 1; node <= nodes_; ++node)
      if (!harness_.Quiet(node)) return {node, harness_.Next(node).start_decode()};
    ADD_FAILURE() << "the request is not placed";
    return {};
  }
};

// Where other nodes lend enough, the prefill node is told to lend what the decode node cannot hold;
// once. After that the decode node computes the prompt itself.
TEST_F(SplitPromptTest, APrefillNodeLendsWhatTheDecodeNodeNames) {
  Join({Small("d1"), Small("d2"), Small("d3"), Small("p1", v1::NODE_ROLE_PREFILL),
        Small("p2", v1::NODE_ROLE_PREFILL)});
  const auto [decode, start] = Start();
  EXPECT_EQ(start.prefill_blocks(), 50);
  EXPECT_NE(start.local_prefill_tokens_max(), -1);
  v1::NodeEvent reserved = Reserved(start.leg());
  reserved.mutable_reserved()->set_lent_units(13);
  harness_.Say(decode, {reserved});
  const uint64_t sender = harness_.Quiet(4) ? 5 : 4;
  const v1::Prefill prefill = harness_.Next(sender).prefill();
  EXPECT_EQ(prefill.lent_units(), 13);
  EXPECT_EQ(prefill.borrow_blocks_max(), 4 * kLendable);
  EXPECT_EQ(prefill.arrived_us(), start.arrived_us());
  harness_.Say(sender, {LegFailed(prefill.leg(), /*sender_side=*/true)});
  const v1::NodeCommand next = harness_.Next(decode);
  ASSERT_TRUE(next.has_new_epoch());
  EXPECT_EQ(next.new_epoch().local_prefill_tokens_max(), -1);
}

TEST_F(SplitPromptTest, WhereOthersLendTooLittleTheDecodeNodeComputesThePrompt) {
  Join({Small("d1"), Small("d2"), Small("p1", v1::NODE_ROLE_PREFILL)});
  const auto [decode, start] = Start();
  EXPECT_EQ(start.prefill_blocks(), 0);
  EXPECT_EQ(start.local_prefill_tokens_max(), -1) << "the prefill node cannot hold it either";
}

}  // namespace
}  // namespace tandem::router
