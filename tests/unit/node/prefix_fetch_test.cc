// Goal: a prompt whose beginning another node should send is computed in full when that node is
// gone, dies before or while it sends, or is never heard of: with the same token, and without a
// block left behind. What arrives after that lands in no block that is in use. When it comes, the
// prompt's node computes what the other node did not have, to the token; a sender that names too
// many rows is not believed.
#include "common/node/prefix_fetch.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <variant>

#include "common/engine/hash/hash_engine.h"
#include "prefill_node/prefill_core.h"
#include "tests/testing/status_matchers.h"
#include "tests/unit/node/prefix_holder.h"

namespace tandem::prefill_node {
namespace {

using ::testing::SizeIs;

const node::RouterKey kRouter(7);
constexpr int kBlocks = 16, kBlockTokens = 16, kPrompt = 100, kFetched = 4;
constexpr int kAfter = kBlockTokens - 1;  // tokens of a block that is not full

// The node that has the prompt's beginning, as far as a sequence of it went.
class Holder : public node::PrefixHolder {
 public:
  explicit Holder(int tokens)
      : PrefixHolder({.num_layers = 2, .block_tokens = kBlockTokens}, kBlocks, tokens) {}
};

class PrefixFetchTest : public ::testing::Test {
 protected:
  PrefixFetchTest() {
    engine_ = *engine::NewHashEngine({.num_layers = 2, .block_tokens = kBlockTokens});
    EXPECT_OK(engine_->AllocateKv(kBlocks));
    resources_ =
        std::make_unique<node::NodeResources>(node::SchedulerOptions{.spec = engine_->spec(),
                                                                     .num_blocks = kBlocks,
                                                                     .max_batch_tokens = 64,
                                                                     .max_sequences = 2});
    core_ = std::make_unique<PrefillCore>(*resources_);
  }
  // `fetches`: half of the prompt is said to lie on another node.
  static v1::NodeCommand Prompt(const std::string& id, bool fetches) {
    v1::NodeCommand command;
    v1::Prefill& prefill = *command.mutable_prefill();
    prefill.mutable_leg()->set_request_id(id);
    prefill.mutable_leg()->set_attempt(1);
    for (int i = 0; i < kPrompt; ++i) prefill.mutable_sequence()->add_prompt(i);
    prefill.mutable_sequence()->mutable_stop()->set_max_tokens(9);
    prefill.mutable_sequence()->mutable_sampling()->set_seed(3);
    prefill.set_lease_id(31);
    prefill.set_epoch(1);
    prefill.set_receiver_node_id("decode-0");
    prefill.set_receiver_incarnation(55);
    prefill.set_receiver_address("addr");
    prefill.set_receiver_host("box");
    prefill.set_deadline_s(20);
    if (fetches) {
      prefill.set_fetch_from_node_id("decode-1");
      prefill.set_fetch_from_incarnation(77);
      prefill.set_fetch_blocks(kFetched);
    }
    return command;
  }
  node::NodeActions Send(const v1::NodeCommand& command) {
    core_->OnCommand(kRouter, command, now_);
    return resources_->TakeActions();
  }
  node::NodeActions Send(const transfer::TransferEvent& event) {
    core_->OnTransfer(event, now_);
    return resources_->TakeActions();
  }
  // Begins the prompt, which asks for its beginning. The lease under which that would come.
  LeaseId BeginFetch() { return LeaseId(Wanted().lease_id()); }
  v1::BlocksWanted Wanted() {
    const node::NodeActions actions = Send(Prompt("a", /*fetches=*/true));
    EXPECT_THAT(actions.events, SizeIs(1));
    const v1::BlocksWanted& wanted = actions.events[0].second.blocks_wanted();
    EXPECT_EQ(wanted.from_node_id(), "decode-1");
    EXPECT_EQ(wanted.hashes().size(), kFetched * kv::kBlockHashBytes);
    EXPECT_EQ(wanted.tokens_after_size(), kAfter);
    EXPECT_EQ(wanted.tokens_after(0), kFetched * kBlockTokens);
    EXPECT_TRUE(core_->PlanStep(now_).empty()) << "it waits";
    EXPECT_EQ(core_->load().leases(), 1);
    const auto& open = std::get<transfer::OpenLease>(actions.transfer.at(0));
    EXPECT_THAT(open.blocks, SizeIs(kFetched + 1));
    EXPECT_EQ(open.deadline, now_ + node::PrefixFetch::kTimeMax);
    leased_ = open.blocks;
    return wanted;
  }
  // The holder's blocks arrive; its FIN says that `rows` rows of the last one are right, or what
  // the holder says. Returns that.
  int64_t Deliver(Holder& holder, const v1::BlocksWanted& wanted,
                  std::optional<int64_t> rows = std::nullopt) {
    v1::TokensBySource said = holder.Send(wanted, leased_, engine_->arena());
    if (rows.has_value()) said.set_cached(*rows);
    Send(transfer::LeaseInstalled{.lease = LeaseId(wanted.lease_id()),
                                  .epoch = Epoch(1),
                                  .tokens = said,
                                  .bytes_received = 77});
    fetched_bytes_ = 77;
    return said.cached();
  }
  // The prompt computes all but `cached` tokens, with the same token as ever.
  void ExpectCached(int64_t cached) {
    const auto [token, computed] = Compute();
    EXPECT_EQ(computed, kPrompt - cached);
    EXPECT_EQ(token, TokenAlone());
    Send(transfer::ExportDone{transfer::ExportId(1), 123});
    EXPECT_EQ(core_->load().blocks_used(), 0);
    EXPECT_TRUE(core_->idle());
  }
  // Computes what is there to compute: the prompt's token, and how many tokens were computed.
  std::pair<TokenId, int64_t> Compute() {
    std::pair<TokenId, int64_t> result = {-1, -1};
    while (true) {
      const auto slices = core_->PlanStep(now_);
      if (slices.empty()) return result;
      core_->OnStepDone(engine_->Step(slices, [&](int layer) { core_->OnLayerDone(layer); }), now_);
      for (const auto& [router, event] : resources_->TakeActions().events) {
        if (event.has_tokens()) result.first = event.tokens().steps(0).tokens(0).token_id();
        if (!event.has_prefill_finished()) continue;
        sources_ = event.prefill_finished().tokens();
        result.second = sources_.computed();
        EXPECT_EQ(event.prefill_finished().fetch_declined(), declined_);
        EXPECT_EQ(event.prefill_finished().fetched().kv_bytes_received(), fetched_bytes_);
      }
    }
  }
  // The token of a prompt that never fetched, on a core of its own.
  static TokenId TokenAlone() {
    PrefixFetchTest alone;
    alone.Send(Prompt("a", /*fetches=*/false));
    return alone.Compute().first;
  }

  void TestBody() override {}  // so that TokenAlone can make one

  // The prompt is computed in full; afterwards, nothing is held but the fetch's quarantine.
  void ExpectComputedInFull(LeaseId lease) {
    const int64_t quarantined = core_->load().blocks_quarantined();
    EXPECT_EQ(quarantined, kFetched + 1) << "the dead node's bytes may still land";
    const auto [token, computed] = Compute();
    EXPECT_EQ(computed, kPrompt);
    EXPECT_EQ(token, TokenAlone());
    EXPECT_EQ(resources_->counters().fetches_failed(), 1);
    EXPECT_EQ(resources_->counters().blocks_fetched(), 0);
    Send(transfer::ExportDone{transfer::ExportId(1), 123});
    EXPECT_FALSE(core_->idle());
    Send(transfer::LeaseDrained{.lease = lease});
    EXPECT_EQ(core_->load().blocks_quarantined(), 0);
    EXPECT_EQ(core_->load().blocks_used(), 0);
    EXPECT_TRUE(core_->idle());
  }

  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<node::NodeResources> resources_;
  std::unique_ptr<PrefillCore> core_;
  std::vector<BlockId> leased_;
  v1::TokensBySource sources_;  // of the last prompt
  // What Compute expects of prompts.
  bool declined_ = false;
  int64_t fetched_bytes_ = 0;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

TEST_F(PrefixFetchTest, TheRouterKnowsThatTheSourceIsGone) {
  const LeaseId lease = BeginFetch();
  v1::NodeCommand no_holder;
  no_holder.mutable_send_blocks()->set_fetch(true);
  no_holder.mutable_send_blocks()->set_lease_id(lease.value());
  const node::NodeActions actions = Send(no_holder);
  EXPECT_EQ(std::get<transfer::CloseLease>(actions.transfer.at(0)).lease, lease);
  ExpectComputedInFull(lease);
}

TEST_F(PrefixFetchTest, TheSourceDiesWhileItSends) {
  const LeaseId lease = BeginFetch();
  now_ += absl::Milliseconds(20);
  Send(transfer::LeaseFailed{
      .lease = lease, .epoch = Epoch(1), .status = absl::UnavailableError("the peer is gone")});
  ExpectComputedInFull(lease);
}

// A node that died before it was asked: the lease's own deadline ends the wait.
TEST_F(PrefixFetchTest, TheSourceIsNeverHeardOf) {
  const LeaseId lease = BeginFetch();
  now_ += node::PrefixFetch::kTimeMax;
  core_->OnTick(now_);
  Send(transfer::LeaseFailed{
      .lease = lease, .epoch = Epoch(1), .status = absl::DeadlineExceededError("no sender")});
  ExpectComputedInFull(lease);
}

// The dead source's last bytes complete the lease after it was given up.
TEST_F(PrefixFetchTest, WhatComesTooLateIsNotTaken) {
  const LeaseId lease = BeginFetch();
  Send(transfer::LeaseFailed{
      .lease = lease, .epoch = Epoch(1), .status = absl::UnavailableError("the peer is gone")});
  Send(transfer::LeaseInstalled{.lease = lease, .epoch = Epoch(1)});
  ExpectComputedInFull(lease);
}

TEST_F(PrefixFetchTest, OnlyWhatTheHolderDidNotHaveIsComputed) {
  Holder holder(75);
  holder.EndSequence();
  EXPECT_EQ(Deliver(holder, Wanted()), 75 % kBlockTokens);
  EXPECT_EQ(resources_->counters().blocks_fetched(), kFetched);
  EXPECT_EQ(resources_->counters().part_tokens_fetched(), 75 % kBlockTokens);
  ExpectCached(75);
  EXPECT_EQ(sources_.cached(), 75);
  EXPECT_EQ(sources_.fetched(), kFetched * kBlockTokens);
  EXPECT_EQ(resources_->counters().prompt_tokens().fetched(), kFetched * kBlockTokens);
}

TEST_F(PrefixFetchTest, WithoutAPartTheFullBlocksCome) {
  Holder holder(64);
  holder.EndSequence();
  EXPECT_EQ(Deliver(holder, Wanted()), 0);
  ExpectCached(64);
}

// Its owner may write the rest of the block while it is sent.
TEST_F(PrefixFetchTest, ABlockThatIsBeingWrittenIsNotSent) {
  Holder holder(64);
  holder.EndSequence();
  node::SequenceInput input;
  for (int i = 0; i < 70; ++i) input.prompt.push_back(i);
  input.stop.max_tokens = 20;
  input.forks_follow = true;
  holder.Run(std::move(input));
  const auto commands = holder.Ask(Wanted());
  const auto& open = std::get<transfer::OpenExport>(commands.at(0));
  EXPECT_EQ(open.blocks.at(kFetched), open.blocks.at(kFetched - 1)) << "in its place";
  EXPECT_EQ(std::get<transfer::FinishExport>(commands.at(2)).tokens.cached(), 0);
}

class SaidRowsTest : public PrefixFetchTest, public ::testing::WithParamInterface<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Senseless, SaidRowsTest, ::testing::Values(-1, kAfter + 1, 1 << 30));

TEST_P(SaidRowsTest, ASenderThatNamesRowsThatCannotBeIsNotBelieved) {
  Holder holder(75);
  holder.EndSequence();
  Deliver(holder, Wanted(), GetParam());
  ExpectCached(64);
}

TEST_F(PrefixFetchTest, TokensThatNoPromptHasAreDeclined) {
  Holder holder(75);
  holder.EndSequence();
  const v1::BlocksWanted wanted = Wanted();
  const auto declines = [&](auto spoil) {
    v1::BlocksWanted spoiled = wanted;
    spoil(spoiled);
    const auto commands = holder.Ask(spoiled);
    return commands.size() == 2 && std::holds_alternative<transfer::CancelExport>(commands[1]);
  };
  EXPECT_TRUE(declines([](v1::BlocksWanted& w) { w.add_tokens_after(1); })) << "a whole block";
  EXPECT_TRUE(declines([](v1::BlocksWanted& w) { w.set_tokens_after(0, -1); }));
  EXPECT_TRUE(declines([](v1::BlocksWanted& w) { w.set_tokens_after(0, 1 << 20); }));
  EXPECT_TRUE(declines([](v1::BlocksWanted& w) { w.set_lent(true); })) << "a loan has no part";
  EXPECT_FALSE(declines([](v1::BlocksWanted&) {}));
}

// Two prompts have nearly all blocks. The router must not blame a holder that was not asked.
TEST_F(PrefixFetchTest, APromptWithoutRoomSaysThatItAskedNobody) {
  for (const std::string id : {"b", "c"}) Send(Prompt(id, /*fetches=*/false));
  EXPECT_EQ(Compute().second, kPrompt);
  EXPECT_THAT(Send(Prompt("a", /*fetches=*/true)).events, SizeIs(0));
  for (const int number : {1, 2}) Send(transfer::ExportDone{transfer::ExportId(number), 123});
  declined_ = true;
  EXPECT_EQ(Compute().first, TokenAlone());
  Send(transfer::ExportDone{transfer::ExportId(3), 123});
  EXPECT_TRUE(core_->idle());
}

TEST_F(PrefixFetchTest, AnAbortedPromptsFetchLeavesNothing) {
  const LeaseId lease = BeginFetch();
  v1::NodeCommand abort;
  abort.mutable_abort()->mutable_leg()->set_request_id("a");
  abort.mutable_abort()->mutable_leg()->set_attempt(1);
  Send(abort);
  Send(transfer::LeaseFailed{
      .lease = lease, .epoch = Epoch(1), .status = absl::UnavailableError("the peer is gone")});
  EXPECT_TRUE(core_->PlanStep(now_).empty());
  Send(transfer::LeaseDrained{.lease = lease});
  EXPECT_EQ(core_->load().blocks_used() + core_->load().blocks_quarantined(), 0);
  EXPECT_TRUE(core_->idle());
}

}  // namespace
}  // namespace tandem::prefill_node
