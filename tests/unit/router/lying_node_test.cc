// Goal: a node that does not have the blocks that it says it has is asked for them less and less,
// whether its decode leg or a fetch shows it, and a node that has them is asked instead.
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

RouterOptions NothingIsComputedByDecodeNodes() {
  RouterOptions options;
  options.local_prefill_tokens_max = 0;
  options.fetch_tokens_min = 48;
  return options;
}

class LyingNodeTest : public ::testing::Test {
 protected:
  LyingNodeTest() : h_(NothingIsComputedByDecodeNodes()) {
    SetLogLevel(LogLevel::kError);
    h_.JoinDecode(kD0, "d0");
    h_.JoinPrefill(kP0, "p0");
    v1::NodeEvent stored;
    stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(HashesOf(Tokens(100))));
    h_.Say(kD0, {stored});
  }
  // One request from its start to its end, of whose prompt d0 reports `reserved_cached` tokens
  // found and p0 `fetched`. Returns the blocks that p0 was to fetch from d0.
  int64_t Request(int reserved_cached, int fetched, bool fetch_declined = false) {
    const std::string id = absl::StrCat("r", ++requests_);
    EXPECT_OK(h_.Submit(id));
    const v1::Leg decode = h_.NextRun(kD0).leg();
    h_.Say(kD0, {Reserved(decode, reserved_cached)});
    const v1::Prefill prefill = h_.NextPrefill(kP0);
    v1::NodeEvent finished = PrefillFinished(prefill.leg(), 100 - fetched, fetched);
    finished.mutable_prefill_finished()->set_fetch_declined(fetch_declined);
    h_.Say(kP0, {Generated(prefill.leg(), {0}), finished});
    h_.Say(kD0, {Installed(decode, 0), Generated(decode, {1, 2, 3, 4, 5, 6, 7, 8, 9})});
    EXPECT_TRUE(h_.client(id).done.has_value()) << h_.client(id).failure;
    return prefill.fetch_blocks();
  }
  bool FetchFailed() {
    const auto& failures = h_.core().fleet().Find(NodeKey(kP0))->failures_in;
    const auto found = failures.find(h_.core().fleet().Find(NodeKey(kD0))->id);
    return found != failures.end() && found->second.fetch_failed;
  }
  double Trust() { return h_.core().fleet().Find(NodeKey(kD0))->record.Trust(h_.now()); }

  // The most requests whose prompts are still to be fetched from d0.
  static constexpr int kTimesMax = 16;
  // At least the last token of a prompt is computed.
  static constexpr int kBlocks = 99 / kBlockTokens, kHeld = kBlocks * kBlockTokens;

  CoreHarness h_;
  int requests_ = 0;
};

TEST_F(LyingNodeTest, AHolderThatTellsTheTruthIsAskedForAllOfIt) {
  for (int i = 0; i < kTimesMax; ++i) EXPECT_EQ(Request(kHeld, kHeld), kBlocks) << "request " << i;
  EXPECT_EQ(Trust(), 1);
}

TEST_F(LyingNodeTest, AFetchThatBringsNothingCountsAgainstItsHolder) {
  Request(kHeld, 0);
  EXPECT_LT(Trust(), 1);
  EXPECT_TRUE(FetchFailed()) << "over a link that may be too slow, the next fetch is smaller";
}

TEST_F(LyingNodeTest, AHolderThatWasNotAskedIsNotBlamed) {
  for (int i = 0; i < kTimesMax; ++i)
    EXPECT_EQ(Request(kHeld, 0, /*fetch_declined=*/true), kBlocks) << "request " << i;
  EXPECT_EQ(Trust(), 1);
  EXPECT_FALSE(FetchFailed());
}

TEST_F(LyingNodeTest, ADecodeLegThatFindsNothingCountsAgainstItsNode) {
  Request(0, kHeld);
  EXPECT_LT(Trust(), 1);
}

TEST_F(LyingNodeTest, AHolderThatOnceLackedABlockIsStillAskedForTheLastOne) {
  // p0 has so many blocks that what is missing is just worth a fetch.
  constexpr int kMissing = 48 / kBlockTokens;
  const std::vector<kv::BlockHash> hashes = HashesOf(Tokens(100));
  v1::NodeEvent stored;
  stored.mutable_blocks_stored()->set_hashes(
      kv::PackHashes(absl::MakeConstSpan(hashes).first(kBlocks - kMissing)));
  h_.Say(kP0, {stored});
  EXPECT_EQ(Request(kHeld, kHeld - kBlockTokens), kBlocks);
  EXPECT_LT(Trust(), 1);
  EXPECT_EQ(Request(kHeld, kHeld), kBlocks);
}

TEST_F(LyingNodeTest, OneThatHasNothingIsAskedNoMore) {
  int64_t last = Request(0, 0);
  EXPECT_EQ(last, kBlocks);
  for (int i = 0; i < kTimesMax && last > 0; ++i) last = Request(0, 0);
  EXPECT_EQ(last, 0);
}

}  // namespace
}  // namespace tandem::router
