// Goal: a tenant's sequences are placed only while what they hold on the decode nodes, as nodes
// report it for all routers or as this router has placed it since, is within the tenant's share;
// others pass meanwhile; and what ends gives its part back.
#include <limits>

#include "absl/strings/str_cat.h"
#include "router/fleet/tenant_blocks.h"
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

// Each of the two decode nodes has 100 blocks of 4 tokens; a prompt of 40 tokens and the next token
// need 11.
constexpr int kPrompt = 40;

class KvShareTest : public RequestTest {
 protected:
  void SetUp() override { JoinAll(); }
  absl::Status SubmitOf(const std::string& tenant, const std::string& id, double share) {
    RequestInput input = CoreHarness::Input(id, kPrompt, 10);
    input.share = {tenant, 1, share};
    return h_.Submit(std::move(input));
  }
  // Reports that a node's pool holds `used` blocks for alice.
  void Report(uint64_t node, int64_t used) {
    v1::NodeMessage message;
    message.set_has_tenant_blocks(true);
    if (used > 0) {
      v1::TenantBlocks& blocks = *message.add_tenant_blocks();
      blocks.set_tenant("alice");
      blocks.set_used(used);
      blocks.set_cached(77);
    }
    h_.SayMessage(node, message);
  }
  int64_t queued() { return h_.core().sequences_queued(); }
};

TEST_F(KvShareTest, BoundsWhatThisRouterPlaces) {
  // A tenth of 200 blocks: one of them.
  ASSERT_OK(SubmitOf("alice", "r", 0.1));
  const v1::StartDecode run = h_.NextRun(kD0);
  EXPECT_EQ(run.sequence().tenant(), "alice");
  EXPECT_EQ(run.sequence().kv_share(), 0.1);
  d_ = run.leg();
  ASSERT_OK(SubmitOf("alice", "waits", 0.1));
  EXPECT_EQ(queued(), 1);
  // Nobody else waits for that.
  ASSERT_OK(SubmitOf("bob", "b", 0));
  ASSERT_OK(SubmitOf("carol", "c", 0.1));
  EXPECT_EQ(queued(), 1);
  h_.Finish("r", request::FinishReason::kAborted);
  EXPECT_EQ(queued(), 0);
  for (const char* id : {"waits", "b", "c"}) h_.Finish(id, request::FinishReason::kAborted);
  h_.ExpectEmpty();
}

TEST_F(KvShareTest, AnAnswerBeyondItGoesOnAfterItsNodeIsLost) {
  ASSERT_OK(SubmitOf("alice", "r", 0.055));  // 11 blocks, then 5.5 of the one node that is left
  const v1::Leg leg = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(leg, 0, true)});
  h_.Say(kD0, {Installed(leg, -1), Generated(leg, {0, 1, 2, 3, 4, 5, 6, 7})});
  h_.Lose(kD0);
  EXPECT_EQ(h_.NextRun(kD1).sequence().delivered_tokens(), 8);
  EXPECT_EQ(queued(), 0);
}

TEST_F(KvShareTest, AnAnswersGrowthCounts) {
  ASSERT_OK(SubmitOf("alice", "r", 0.115));  // 23 blocks: two prompts, and one block more
  const v1::Leg leg = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(leg, 0, true)});
  h_.Say(kD0, {Installed(leg, -1), Generated(leg, {0, 1, 2, 3, 4, 5, 6, 7})});
  ASSERT_OK(SubmitOf("alice", "waits", 0.115));
  EXPECT_EQ(queued(), 1);
  h_.Finish("r", request::FinishReason::kAborted);
  EXPECT_EQ(queued(), 0);
}

TEST_F(KvShareTest, CountsWhatOtherRoutersPlaced) {
  Report(kD0, 100);
  Report(kD1, 40);
  ASSERT_OK(SubmitOf("alice", "r", 0.75));  // 150 blocks: 10 are left
  EXPECT_EQ(queued(), 1);
  ASSERT_OK(SubmitOf("bob", "b", 0.75));
  EXPECT_EQ(queued(), 1);
  Report(kD0, 99);
  h_.Advance(absl::Milliseconds(50));
  EXPECT_EQ(queued(), 0);
}

TEST_F(KvShareTest, ALostNodesReportIsForgotten) {
  Report(kD0, 100);
  ASSERT_OK(SubmitOf("alice", "r", 0.5));
  EXPECT_EQ(queued(), 1);
  h_.Lose(kD0);
  EXPECT_EQ(queued(), 0) << "half of what the other node has";
}

TEST_F(KvShareTest, SaysWhyARequestWaitedInVain) {
  Report(kD0, 100);
  ASSERT_OK(SubmitOf("alice", "r", 0.5));
  for (int i = 0; i < 61; ++i) {
    for (const uint64_t node : {kD0, kD1, kP0, kP1}) h_.Say(node, {});
    h_.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(h_.client("r").failure,
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("share of the KV blocks")));
}

TEST_F(KvShareTest, APromptThatTheShareNeverHoldsIsRefusedOnceTheFleetHasStarted) {
  ASSERT_OK(SubmitOf("alice", "early", 0.04)) << "more nodes may join";
  EXPECT_EQ(queued(), 1);
  for (int i = 0; i < 11; ++i) {
    for (const uint64_t node : {kD0, kD1, kP0, kP1}) h_.Say(node, {});
    h_.Advance(absl::Seconds(1));
  }
  EXPECT_THAT(h_.client("early").failure,
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds 32 tokens")));
  EXPECT_THAT(SubmitOf("alice", "r", 0.04),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("holds 32 tokens")));
}

TEST(TenantBlocks, TakesNoFigureThatCannotBe) {
  TenantBlocks blocks;
  v1::NodeMessage report;
  report.set_has_tenant_blocks(true);
  const auto add = [&report](const std::string& tenant, int64_t used) {
    v1::TenantBlocks& held = *report.add_tenant_blocks();
    held.set_tenant(tenant);
    held.set_used(used);
  };
  add("a", std::numeric_limits<int64_t>::max());
  add("b", std::numeric_limits<int64_t>::min());
  add(std::string(TenantBlocks::kTenantNameBytesMax + 1, 'c'), 1);
  for (uint64_t node = 1; node <= 3; ++node) blocks.OnReport(NodeKey(node), report);
  EXPECT_EQ(blocks.Used("a"), 3 * TenantBlocks::kBlocksMax);
  EXPECT_EQ(blocks.Used("b"), 0);
  EXPECT_EQ(blocks.Used(std::string(TenantBlocks::kTenantNameBytesMax + 1, 'c')), 0);
  report.clear_tenant_blocks();
  for (int i = 0; i <= TenantBlocks::kReportedMax; ++i) add(absl::StrCat("t", i), 1);
  blocks.OnReport(NodeKey(1), report);
  EXPECT_EQ(blocks.Used(absl::StrCat("t", TenantBlocks::kReportedMax - 1)), 1);
  EXPECT_EQ(blocks.Used(absl::StrCat("t", TenantBlocks::kReportedMax)), 0);
  for (uint64_t node = 1; node <= 3; ++node) blocks.OnNodeLost(NodeKey(node));
  EXPECT_EQ(blocks.Used("a"), 0);
}

TEST(TenantBlocks, TheLargerFigureCounts) {
  TenantBlocks blocks;
  blocks.Add("a", 5);
  EXPECT_EQ(blocks.Used("a"), 5);
  v1::NodeMessage report;
  blocks.OnReport(NodeKey(1), report);
  EXPECT_EQ(blocks.Used("a"), 5) << "a message without the list";
  report.set_has_tenant_blocks(true);
  for (const int64_t used : {7, 9, -3}) {
    v1::TenantBlocks& held = *report.add_tenant_blocks();
    held.set_tenant("a");
    held.set_used(used);
  }
  blocks.OnReport(NodeKey(1), report);
  blocks.OnReport(NodeKey(1), report);
  EXPECT_EQ(blocks.Used("a"), 7) << "a name that a report gives twice counts once";
  blocks.OnReport(NodeKey(2), report);
  EXPECT_EQ(blocks.Used("a"), 14);
  blocks.OnNodeLost(NodeKey(1));
  EXPECT_EQ(blocks.Used("a"), 7);
  report.clear_tenant_blocks();
  blocks.OnReport(NodeKey(2), report);
  EXPECT_EQ(blocks.Used("a"), 5);
  blocks.Add("a", -5);
  EXPECT_EQ(blocks.Used("a"), 0);
}

}  // namespace
}  // namespace tandem::router
