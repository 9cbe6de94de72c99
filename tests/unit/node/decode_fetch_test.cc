// Goal: a decode node that is to compute a prompt fetches its beginning from the node that
// StartDecode names, computes the rest, and generates the stream of a node that fetched nothing.
// While the fetch runs it answers nothing. A fetch that fails, is declined or comes too late, an
// abort, a newer attempt, a drain and the loss of the router leave no block behind.
#include <gmock/gmock.h>

#include <optional>

#include "tests/unit/node/decode_core_fixture.h"
#include "tests/unit/node/prefix_holder.h"

namespace tandem::decode_node {
namespace {

using ::testing::SizeIs;

constexpr int kPrompt = 100, kHeld = 75, kFetched = 4;

class DecodeFetchTest : public DecodeCoreTest {
 protected:
  // Room for the prompt beside what a fetch that failed has quarantined.
  explicit DecodeFetchTest(int64_t blocks = 16) : DecodeCoreTest({.blocks = blocks}) {}
  static v1::NodeCommand Fetching(const std::string& id, uint32_t attempt = 1) {
    v1::NodeCommand command = Run(id, kPrompt, /*local_max=*/-1, attempt);
    command.mutable_start_decode()->set_fetch_from_node_id("decode-1");
    command.mutable_start_decode()->set_fetch_from_incarnation(77);
    command.mutable_start_decode()->set_fetch_blocks(kFetched);
    return command;
  }
  // Begins the leg, which asks for its prompt's beginning.
  void Begin(const v1::NodeCommand& command) {
    const node::NodeActions actions = Send(command);
    ASSERT_THAT(actions.events, SizeIs(1));
    ASSERT_TRUE(actions.events[0].second.has_blocks_wanted());
    wanted_ = actions.events[0].second.blocks_wanted();
    EXPECT_EQ(wanted_.from_node_id(), "decode-1");
    EXPECT_EQ(wanted_.from_incarnation(), 77);
    EXPECT_EQ(wanted_.hashes().size(), kFetched * kv::kBlockHashBytes);
    leased_ = std::get<transfer::OpenLease>(actions.transfer.at(0)).blocks;
    EXPECT_TRUE(core_->PlanStep(now_).empty()) << "it waits";
    EXPECT_FALSE(core_->idle());
  }
  // The holder has the first 75 tokens: four blocks, and a part of the next one.
  node::NodeActions Deliver() {
    engine::HashEngineOptions options;
    options.block_tokens = kBlockTokens;
    options.context_tokens = setup_.context_tokens;
    node::PrefixHolder holder(options, 16, kHeld);
    holder.EndSequence();
    return Send(transfer::LeaseInstalled{.lease = LeaseId(wanted_.lease_id()),
                                         .epoch = Epoch(1),
                                         .tokens = holder.Send(wanted_, leased_, engine_->arena()),
                                         .bytes_received = 5000,
                                         .transfer_time = absl::Milliseconds(4),
                                         .receive_time = absl::Milliseconds(3),
                                         .transport = "fake"});
  }
  node::NodeActions Fail() {
    return Send(transfer::LeaseFailed{.lease = LeaseId(wanted_.lease_id()),
                                      .epoch = Epoch(1),
                                      .status = absl::UnavailableError("the peer is gone")});
  }
  void Drained() { Send(transfer::LeaseDrained{.lease = LeaseId(wanted_.lease_id())}); }
  static const v1::Reserved& ReservedIn(const node::NodeActions& actions) {
    EXPECT_THAT(actions.events, SizeIs(1));
    EXPECT_TRUE(actions.events.at(0).second.has_reserved());
    return actions.events.at(0).second.reserved();
  }
  // Generates the whole answer. Fills sources_.
  std::vector<TokenId> Generate() {
    std::vector<TokenId> tokens;
    for (int step = 0; step < 20; ++step) {
      for (const auto& [router, event] : Step().events) {
        if (event.has_installed()) sources_ = event.installed().tokens();
        for (const v1::TokensGenerated::Step& made : event.tokens().steps())
          for (const v1::GeneratedToken& token : made.tokens()) tokens.push_back(token.token_id());
      }
    }
    return tokens;
  }
  std::vector<TokenId> GenerateAlone() {
    MakeFresh();
    EXPECT_TRUE(ReservedIn(Send(Run("alone", kPrompt, -1))).computes_locally());
    return Generate();
  }
  void ExpectNothingHeld() {
    EXPECT_EQ(core_->load().blocks_used() + core_->load().blocks_quarantined(), 0);
    EXPECT_EQ(core_->held(), 0);
    EXPECT_TRUE(core_->idle());
  }

  v1::BlocksWanted wanted_;
  std::vector<BlockId> leased_;
  v1::TokensBySource sources_;
};

TEST_F(DecodeFetchTest, TheRestIsComputedAndTheStreamIsTheSame) {
  Begin(Fetching("a"));
  const v1::Reserved reserved = ReservedIn(Deliver());
  EXPECT_EQ(reserved.leg().request_id(), "a");
  EXPECT_TRUE(reserved.computes_locally());
  EXPECT_EQ(reserved.cached_tokens(), kFetched * kBlockTokens);
  EXPECT_FALSE(reserved.fetch_declined());
  // The router learns what the link to the holder takes.
  EXPECT_EQ(reserved.fetched().kv_bytes_received(), 5000);
  EXPECT_EQ(reserved.fetched().kv_transfer_ms(), 4);
  EXPECT_EQ(reserved.fetched().kv_receive_ms(), 3);
  EXPECT_EQ(reserved.fetched().transport(), "fake");
  const std::vector<TokenId> tokens = Generate();
  EXPECT_THAT(tokens, SizeIs(3));
  EXPECT_EQ(sources_.computed(), kPrompt - kHeld);
  EXPECT_EQ(sources_.fetched(), kFetched * kBlockTokens);
  EXPECT_EQ(resources_->counters().blocks_fetched(), kFetched);
  ExpectNothingHeld();
  EXPECT_EQ(tokens, GenerateAlone());
}

TEST_F(DecodeFetchTest, AFetchThatFailsCostsTheRequestNothingButItsTime) {
  Begin(Fetching("a"));
  now_ += absl::Milliseconds(20);
  const v1::Reserved reserved = ReservedIn(Fail());
  EXPECT_EQ(reserved.cached_tokens(), 0);
  EXPECT_FALSE(reserved.fetch_declined()) << "the holder was asked";
  EXPECT_FALSE(reserved.has_fetched());
  EXPECT_EQ(core_->load().blocks_quarantined(), kFetched + 1) << "its bytes may still land";
  Drained();
  const std::vector<TokenId> tokens = Generate();
  EXPECT_EQ(sources_.computed(), kPrompt);
  ExpectNothingHeld();
  EXPECT_EQ(tokens, GenerateAlone());
}

TEST_F(DecodeFetchTest, ARouterThatFindsNoHolderSaysSo) {
  Begin(Fetching("a"));
  v1::NodeCommand no_holder;
  no_holder.mutable_send_blocks()->set_fetch(true);
  no_holder.mutable_send_blocks()->set_lease_id(wanted_.lease_id());
  EXPECT_EQ(ReservedIn(Send(no_holder)).cached_tokens(), 0);
}

// Its tokens are scored, or another sequence holds the room that it would take.
TEST_F(DecodeFetchTest, WhatIsNotFetchedIsDeclined) {
  v1::NodeCommand scored = Fetching("a");
  scored.mutable_start_decode()->mutable_sequence()->set_prompt_logprobs(1);
  EXPECT_TRUE(ReservedIn(Send(scored)).fetch_declined());
  Send(Abort("a"));
  v1::NodeCommand other = Run("other", 150, -1);
  other.mutable_start_decode()->mutable_sequence()->set_prompt(0, 99);
  EXPECT_FALSE(ReservedIn(Send(other)).fetch_declined()) << "nobody was named";
  for (const auto& [router, event] : Send(Fetching("b")).events)
    EXPECT_FALSE(event.has_blocks_wanted());
}

// Each fetch that runs keeps its command, with the prompt.
class ManyFetchesTest : public DecodeFetchTest {
 protected:
  ManyFetchesTest() : DecodeFetchTest(/*blocks=*/500) {}
};

TEST_F(ManyFetchesTest, BeyondTheBoundAPromptIsComputedAtOnce) {
  const auto prompt = [](int number) {
    v1::NodeCommand command = Fetching(absl::StrCat("r", number));
    command.mutable_start_decode()->mutable_sequence()->set_prompt(0, number);
    return command;
  };
  const int most = static_cast<int>(node::PrefixFetch::kFetchesMax);
  for (int i = 0; i < most; ++i) {
    const node::NodeActions actions = Send(prompt(i));
    ASSERT_THAT(actions.events, SizeIs(1));
    ASSERT_TRUE(actions.events[0].second.has_blocks_wanted()) << i;
  }
  EXPECT_EQ(core_->load().leases(), most);
  const v1::Reserved reserved = ReservedIn(Send(prompt(most)));
  EXPECT_TRUE(reserved.computes_locally());
  EXPECT_TRUE(reserved.fetch_declined()) << "so the router does not blame the holder";
  EXPECT_EQ(core_->load().leases(), most);
}

TEST_F(DecodeFetchTest, AnAbortLeavesNothing) {
  Begin(Fetching("a"));
  Send(Abort("a"));
  EXPECT_THAT(Fail().events, SizeIs(0));
  Drained();
  ExpectNothingHeld();
}

TEST_F(DecodeFetchTest, OnlyANewerAttemptTakesTheLegsPlace) {
  Begin(Fetching("a", 2));
  EXPECT_THAT(Send(Fetching("a", 2)).events, SizeIs(0)) << "it came twice";
  EXPECT_THAT(Send(Fetching("a", 1)).events, SizeIs(0)) << "it was overtaken";
  const v1::Reserved newer = ReservedIn(Send(Run("a", kPrompt, -1, 3)));
  EXPECT_EQ(newer.leg().attempt(), 3);
  EXPECT_THAT(Fail().events, SizeIs(0)) << "of the older attempt";
}

TEST_F(DecodeFetchTest, ADrainAndALateFetchAreRefused) {
  Begin(Fetching("a"));
  now_ += absl::Seconds(6);
  EXPECT_EQ(Refusal(Fail()).code(), absl::StatusCode::kDeadlineExceeded);
  Drained();
  ExpectNothingHeld();
  Begin(Fetching("b"));
  core_->BeginDrain(now_, absl::Seconds(5));
  resources_->TakeActions();
  EXPECT_EQ(Refusal(Fail()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(DecodeFetchTest, TheRouterIsLost) {
  Begin(Fetching("a"));
  core_->OnRouterLost(kRouter, now_);
  EXPECT_THAT(Fail().events, SizeIs(0));
  Drained();
  ExpectNothingHeld();
}

}  // namespace
}  // namespace tandem::decode_node
