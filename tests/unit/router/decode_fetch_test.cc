// Goal: where a decode node is to compute a prompt, the router names the node from which it is to
// fetch the beginning, if fetching is predicted to take less time than computing. What the decode
// node then has tells how far that node is believed.
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

constexpr int kPrompt = 100;

class DecodeFetchTest : public ::testing::Test {
 protected:
  // At least the last token of a prompt is computed.
  static constexpr int kBlocks = (kPrompt - 1) / kBlockTokens, kHeld = kBlocks * kBlockTokens;

  explicit DecodeFetchTest(int32_t local_prefill_tokens = RouterOptions().local_prefill_tokens_max,
                           int64_t kv_bytes_per_block = 0)
      : h_(Options(local_prefill_tokens)), kv_bytes_per_block_(kv_bytes_per_block) {
    SetLogLevel(LogLevel::kError);
    Join(kD0, "d0", v1::NODE_ROLE_DECODE);
    Join(kD1, "d1", v1::NODE_ROLE_DECODE);
    v1::NodeEvent stored;
    stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(HashesOf(Tokens(kPrompt))));
    h_.Say(kD0, {stored});
    // d0 has no room for another sequence.
    v1::NodeMessage full;
    *full.mutable_load() = h_.core().fleet().Find(NodeKey(kD0))->load;
    full.mutable_load()->set_blocks_free(0);
    full.mutable_load()->set_blocks_cached(0);
    h_.SayMessage(kD0, full);
  }
  static RouterOptions Options(int32_t local_prefill_tokens) {
    RouterOptions options;
    options.local_prefill_tokens_max = local_prefill_tokens;
    options.fetch_tokens_min = 48;
    return options;
  }
  void Join(uint64_t key, const std::string& id, v1::NodeRole role) {
    v1::Registration registration = TestRegistration(id, role);
    registration.set_kv_bytes_per_block(kv_bytes_per_block_);
    ASSERT_OK(h_.Join(key, registration));
    v1::NodeMessage message;
    message.mutable_step_cost()->set_step_us(500);
    message.mutable_step_cost()->set_prompt_row_us(1000);
    message.mutable_step_cost()->set_samples(100);
    h_.SayMessage(key, message);
  }
  v1::StartDecode Start(const std::string& id = "r") {
    EXPECT_OK(h_.Submit(id, kPrompt));
    return h_.NextRun(kD1);
  }
  void Reserve(const v1::StartDecode& start, int cached, bool declined = false) {
    v1::NodeEvent reserved = Reserved(start.leg(), cached, /*local=*/true);
    reserved.mutable_reserved()->set_fetch_declined(declined);
    h_.Say(kD1, {reserved});
  }
  // Whether the link's next fetch is a small one again.
  bool FetchFailed() {
    const auto& failures = h_.core().fleet().Find(NodeKey(kD1))->failures_in;
    const auto found = failures.find(h_.core().fleet().Find(NodeKey(kD0))->id);
    return found != failures.end() && found->second.fetch_failed;
  }
  double Trust() { return h_.core().fleet().Find(NodeKey(kD0))->record.Trust(h_.now()); }

  CoreHarness h_;
  const int64_t kv_bytes_per_block_;
};

TEST_F(DecodeFetchTest, ItNamesTheNodeThatHoldsMost) {
  const v1::StartDecode start = Start();
  EXPECT_EQ(start.fetch_from_node_id(), "d0");
  EXPECT_EQ(start.fetch_from_incarnation(),
            h_.core().fleet().Find(NodeKey(kD0))->incarnation.value());
  EXPECT_EQ(start.fetch_blocks(), kBlocks);
  Reserve(start, kHeld);
  EXPECT_EQ(Trust(), 1);
  h_.Say(kD1, {Installed(start.leg(), -1), Generated(start.leg(), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  EXPECT_TRUE(h_.client("r").done.has_value()) << h_.client("r").failure;
}

TEST_F(DecodeFetchTest, WhatItTookTellsTheLinksRate) {
  const v1::StartDecode start = Start();
  v1::NodeEvent reserved = Reserved(start.leg(), kHeld, /*local=*/true);
  v1::FetchedKv& fetched = *reserved.mutable_reserved()->mutable_fetched();
  fetched.set_kv_bytes_received(1 << 20);
  fetched.set_kv_receive_ms(2);
  fetched.set_transport("tcp");
  h_.Say(kD1, {reserved});
  const v1::GetStatusResponse status = h_.core().GetStatus(h_.now());
  ASSERT_EQ(status.links_size(), 1);
  EXPECT_EQ(status.links(0).from_node(), "d0");
  EXPECT_EQ(status.links(0).to_node(), "d1");
  EXPECT_EQ(status.links(0).kv_bytes(), 1 << 20);
  EXPECT_FALSE(FetchFailed());
  EXPECT_EQ(h_.core().fleet().Find(NodeKey(kD1))->links_in.begin()->second.cost.samples(), 1);
}

TEST_F(DecodeFetchTest, AFetchThatBroughtNothingCountsAgainstTheHolder) {
  Reserve(Start(), 0);
  EXPECT_LT(Trust(), 1);
  EXPECT_TRUE(FetchFailed());
}

TEST_F(DecodeFetchTest, OneThatWasDeclinedDoesNot) {
  Reserve(Start(), 0, /*declined=*/true);
  EXPECT_EQ(Trust(), 1);
  EXPECT_FALSE(FetchFailed());
}

// A block of 20 MB: nothing is known of the link, so no more than 125 MB are asked of it.
class LargeBlocksTest : public DecodeFetchTest {
 protected:
  LargeBlocksTest() : DecodeFetchTest(RouterOptions().local_prefill_tokens_max, 20'000'000) {}
};

TEST_F(LargeBlocksTest, ItAsksForABeginningThatComesInTime) {
  const v1::StartDecode start = Start();
  EXPECT_EQ(start.fetch_from_node_id(), "d0");
  EXPECT_EQ(start.fetch_blocks(), 6);
  Reserve(start, 6 * kBlockTokens);
  EXPECT_EQ(Trust(), 1) << "it had what it was asked for";
}

// With --local-prefill-tokens=0 a prefill node computes the prompt, and fetches.
class ReceivingTest : public DecodeFetchTest {
 protected:
  ReceivingTest() : DecodeFetchTest(0) {}
};

TEST_F(ReceivingTest, ADecodeNodeThatReceivesThePromptFetchesNothing) {
  Join(kP0, "p0", v1::NODE_ROLE_PREFILL);
  const v1::StartDecode start = Start();
  EXPECT_EQ(start.fetch_blocks(), 0);
  EXPECT_TRUE(start.fetch_from_node_id().empty());
  h_.Say(kD1, {Reserved(start.leg(), 0)});
  EXPECT_EQ(h_.NextPrefill(kP0).fetch_from_node_id(), "d0");
}

TEST_F(DecodeFetchTest, ScoredTokensAreComputed) {
  RequestInput input = CoreHarness::Input("r", kPrompt, 10);
  input.prompt_logprobs = 1;
  ASSERT_OK(h_.Submit(std::move(input)));
  EXPECT_EQ(h_.NextRun(kD1).fetch_blocks(), 0);
}

// The second sequence of a request runs beside the first one, which computes the prompt.
TEST_F(DecodeFetchTest, OnlyTheFirstSequenceOfARequestFetches) {
  RequestInput input = CoreHarness::Input("r", kPrompt, 10);
  input.sequences = 2;
  ASSERT_OK(h_.Submit(std::move(input)));
  const v1::StartDecode first = h_.NextRun(kD1);
  EXPECT_EQ(first.fetch_blocks(), kBlocks);
  Reserve(first, kHeld);
  h_.Say(kD1, {Installed(first.leg(), -1), Generated(first.leg(), {0})});
  const v1::StartDecode second = h_.NextRun(kD1);
  EXPECT_EQ(second.leg().sequence_index(), 1);
  EXPECT_EQ(second.fetch_blocks(), 0);
}

}  // namespace
}  // namespace tandem::router
