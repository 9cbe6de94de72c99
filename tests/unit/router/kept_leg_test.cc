// Goal: what a decode node that drains kept of a sequence is sent to the node that goes on with it;
// when that fails, the request goes on all the same; nothing that is not wanted stays kept.
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

class RetainedLeg : public RequestTest {
 protected:
  // Request "r" is placed on d1, and what d0 kept of it is asked for.
  void ToMoving() {
    JoinAll();
    ToGenerating();
    SayKept();
    run_ = h_.NextRun(kD1);
    EXPECT_EQ(run_.local_prefill_tokens_max(), 0);
    EXPECT_EQ(run_.sequence().delivered_tokens(), 3);
    EXPECT_EQ(run_.trace_id(), "");
    h_.Say(kD1, {Reserved(run_.leg(), 16)});
    move_ = h_.NextPrefill(kD0);
    EXPECT_EQ(move_.sequence().prompt_size(), 103);
    EXPECT_EQ(move_.receiver_node_id(), "d1");
    EXPECT_EQ(move_.first_ordinal(), 16 / kBlockTokens);
    EXPECT_TRUE(h_.Quiet(kP0));
    EXPECT_TRUE(h_.Quiet(kP1));
  }
  void SayKept() {
    v1::NodeEvent draining;
    draining.mutable_draining();
    v1::NodeEvent kept = LegFailed(d_, false);
    kept.mutable_leg_failed()->set_retained(true);
    h_.Say(kD0, {draining, kept});
  }
  v1::StartDecode run_;
  v1::Prefill move_;
};

TEST_F(RetainedLeg, IsSentToTheNextNode) {
  ToMoving();
  h_.Say(kD0, {Generated(move_.leg(), {3}), PrefillFinished(move_.leg(), 0, 103)});
  h_.Say(kD1, {Installed(run_.leg(), 3, 87)});
  h_.Say(kD1, {Generated(run_.leg(), {4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_EQ(h_.status().sequences_migrated(), 1);
  EXPECT_EQ(h_.status().kv_tokens_moved(), 87);
}

TEST_F(RetainedLeg, IsReplacedByAPrefillNodeWhenItCannotBeSent) {
  ToMoving();
  h_.Say(kD0, {Refused(move_.leg(), absl::StatusCode::kUnavailable)});
  const v1::NodeCommand epoch = h_.Next(kD1);
  ASSERT_TRUE(epoch.has_new_epoch()) << epoch.ShortDebugString();
  h_.Say(kD1, {Reserved(run_.leg(), 16, false, 2, 32)});
  EXPECT_EQ(h_.NextPrefill(kP0).first_ordinal(), 48 / kBlockTokens);
}

TEST_F(RetainedLeg, IsReplacedWhenItsNodeIsLost) {
  ToMoving();
  h_.Lose(kD0);
  EXPECT_TRUE(h_.Next(kD1).has_new_epoch());
}

TEST_F(RetainedLeg, IsGivenUpWithItsRequest) {
  JoinAll();
  ToGenerating();
  h_.Lose(kD1);
  SayKept();  // and nowhere to go
  EXPECT_TRUE(h_.Quiet(kD0));
  h_.Finish("r", request::FinishReason::kAborted);
  h_.ExpectAbort(kD0, d_.attempt());
}

// The next node may not need it, if another sequence there has the same prompt, say.
TEST_F(RetainedLeg, IsDroppedWhenTheNextNodeComputesThePrompt) {
  JoinAll();
  ToGenerating();
  SayKept();
  const v1::StartDecode run = h_.NextRun(kD1);
  EXPECT_EQ(run.local_prefill_tokens_max(), 0) << "what is kept is asked for";
  h_.Say(kD1, {Reserved(run.leg(), 96, true)});
  h_.ExpectAbort(kD0, d_.attempt());
  h_.Say(kD1, {Installed(run.leg(), -1), Generated(run.leg(), {3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_TRUE(h_.Quiet(kD0)) << "it was told once";
  EXPECT_EQ(h_.status().sequences_migrated(), 0);
}

TEST_F(RequestTest, LegsCarryTheTraceId) {
  JoinAll();
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.trace_id = "4bf92f35";
  ASSERT_OK(h_.Submit(std::move(input)));
  const v1::StartDecode run = h_.NextRun(kD0);
  EXPECT_EQ(run.trace_id(), "4bf92f35");
  h_.Say(kD0, {Reserved(run.leg())});
  EXPECT_EQ(h_.NextPrefill(kP0).trace_id(), "4bf92f35");
}

// The router keeps nothing of it: each message names both ends.
TEST_F(RequestTest, ADrainingNodesBlocksAreOfferedToAPeerOfItsRole) {
  JoinAll();
  v1::NodeEvent offered;
  offered.mutable_blocks_offered()->set_hashes(std::string(16, 'h'));
  offered.mutable_blocks_offered()->set_deadline_s(2);
  v1::NodeEvent draining;
  draining.mutable_draining();
  h_.Say(kP0, {draining, offered});
  const v1::NodeCommand adopt = h_.Next(kP1);
  ASSERT_TRUE(adopt.has_adopt_blocks()) << adopt.ShortDebugString();
  EXPECT_EQ(adopt.adopt_blocks().from_node_id(), "p0");
  EXPECT_EQ(adopt.adopt_blocks().hashes(), std::string(16, 'h'));
  v1::NodeEvent wanted;
  wanted.mutable_blocks_wanted()->set_from_node_id("p0");
  wanted.mutable_blocks_wanted()->set_from_incarnation(adopt.adopt_blocks().from_incarnation());
  wanted.mutable_blocks_wanted()->set_lease_id(5);
  wanted.mutable_blocks_wanted()->set_hashes(adopt.adopt_blocks().hashes());
  h_.Say(kP1, {wanted});
  const v1::NodeCommand send = h_.Next(kP0);
  EXPECT_EQ(send.send_blocks().lease_id(), 5u);
  EXPECT_EQ(send.send_blocks().receiver_node_id(), "p1");
  EXPECT_EQ(send.send_blocks().hashes(), std::string(16, 'h'));
  // Alone of its kind, a node is told that nobody takes them.
  h_.Lose(kP0);
  h_.Say(kP1, {draining, offered});
  const v1::NodeCommand none = h_.Next(kP1);
  ASSERT_TRUE(none.has_send_blocks()) << none.ShortDebugString();
  EXPECT_EQ(none.send_blocks().hashes(), "");
}

// Only a node that drains has a use for others' memory, and none decides how long that is held.
TEST_F(RequestTest, BlocksThatAreOfferedAreHeldForABoundedTime) {
  JoinAll();
  v1::NodeEvent offered;
  offered.mutable_blocks_offered()->set_hashes(std::string(16, 'h'));
  offered.mutable_blocks_offered()->set_deadline_s(1e300);
  h_.Say(kP0, {offered});
  EXPECT_TRUE(h_.Quiet(kP1)) << "p0 does not drain";
  const v1::NodeCommand none = h_.Next(kP0);
  ASSERT_TRUE(none.has_send_blocks()) << none.ShortDebugString();
  EXPECT_EQ(none.send_blocks().hashes(), "");
  h_.Say(kP0, {Drains(), offered});
  const v1::NodeCommand adopt = h_.Next(kP1);
  ASSERT_TRUE(adopt.has_adopt_blocks()) << adopt.ShortDebugString();
  EXPECT_EQ(adopt.adopt_blocks().deadline_s(), 30);
}

TEST_F(RequestTest, APeerHearsThatTheSenderOfItsBlocksHasLeft) {
  JoinAll();
  v1::NodeEvent wanted;
  wanted.mutable_blocks_wanted()->set_from_node_id("p0");
  wanted.mutable_blocks_wanted()->set_from_incarnation(1);
  h_.Lose(kP0);
  h_.Say(kP1, {wanted});
  EXPECT_TRUE(h_.Quiet(kP1)) << "it wants nothing";
  wanted.mutable_blocks_wanted()->set_lease_id(5);
  wanted.mutable_blocks_wanted()->set_hashes(std::string(16, 'h'));
  h_.Say(kP1, {wanted});
  const v1::NodeCommand gone = h_.Next(kP1);
  ASSERT_TRUE(gone.has_send_blocks()) << gone.ShortDebugString();
  EXPECT_EQ(gone.send_blocks().lease_id(), 5u);
  EXPECT_EQ(gone.send_blocks().hashes(), "");
  EXPECT_FALSE(gone.send_blocks().fetch());
}

}  // namespace
}  // namespace tandem::router
