// Goal: every way a prefill leg can fail moves the request to another sender under the same lease,
// or gives the lease up, without the client noticing.
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

class PrefillFailure : public RequestTest, public ::testing::WithParamInterface<int> {
 protected:
  // A full node is no failure.
  static constexpr int kFull = 2;
  int attempts() const { return GetParam() == kFull ? 1 : 2; }
  // Each way a prefill leg can end badly.
  void Fail(uint64_t key, const v1::Leg& leg) {
    switch (GetParam()) {
      case 0:
        h_.Lose(key);
        break;
      case 1:
        h_.Say(key, {LegFailed(leg, true)});
        break;
      case kFull:
        h_.Say(key, {Refused(leg, absl::StatusCode::kResourceExhausted)});
        break;
      case 3:
        h_.Say(kD0, {LegFailed(d_, true, 1)});
        break;
      case 4:
        for (int i = 0; i < 121; ++i) {  // nodes are alive, the leg is not
          for (const uint64_t node : {kD0, kD1, kP0, kP1}) h_.Say(node, {});
          h_.Advance(absl::Seconds(1));
        }
        break;
      case 5:
        h_.Say(key, {GeneratedToken(leg, 3, 5)});  // not the token it was asked for
        break;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Ways, PrefillFailure, ::testing::Range(0, 6));

TEST_P(PrefillFailure, AnotherNodeFillsTheSameLeaseUnderTheNextEpoch) {
  JoinAll();
  ToPrefilling();
  Fail(kP0, p_);
  const v1::NodeCommand epoch = h_.Next(kD0);
  ASSERT_TRUE(epoch.has_new_epoch()) << epoch.ShortDebugString();
  EXPECT_EQ(epoch.new_epoch().leg().attempt(), d_.attempt());
  EXPECT_EQ(epoch.new_epoch().lease_id(), 77u);
  EXPECT_EQ(epoch.new_epoch().epoch(), 2u);
  EXPECT_EQ(epoch.new_epoch().local_prefill_tokens_max(), 32);
  EXPECT_TRUE(h_.Quiet(kP1)) << "what is missing is not known yet";
  h_.Say(kD0, {Reserved(d_, 0, false, 1)});  // of the epoch that is over
  EXPECT_TRUE(h_.Quiet(kP1));
  h_.Say(kD0, {Reserved(d_, 16, false, 2, 32)});
  const v1::Prefill again = h_.NextPrefill(kP1);
  EXPECT_EQ(again.epoch(), 2u);
  EXPECT_EQ(again.first_ordinal(), (16 + 32) / kBlockTokens);
  EXPECT_EQ(again.lease_id(), 77u);
  EXPECT_GT(again.leg().attempt(), p_.attempt());
  // The old sender and the old epoch have no say any more.
  h_.Say(kP0, {Generated(p_, {0}), LegFailed(p_, true), PrefillFinished(p_, 1, 1)});
  h_.Say(kD0, {LegFailed(d_, true, 1)});
  EXPECT_TRUE(h_.Quiet(kD0));
  EXPECT_TRUE(h_.Quiet(kP1));
  EXPECT_TRUE(h_.client("r").tokens.empty());
  h_.Say(kP1, {Generated(again.leg(), {0}), PrefillFinished(again.leg(), 100, 0)});
  h_.Say(kD0, {Installed(d_, 0), Generated(d_, {1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), attempts());
  EXPECT_EQ(h_.client("r").done->route.prefill_node(), "p1");
  // The first node's time was predicted, and not the second one's.
  EXPECT_EQ(h_.client("r").done->timing.first_token_predicted_ms(), 0);
}

TEST_F(RequestTest, ANodeThatSendsTheFirstTokenIsComparedWithItsPrediction) {
  JoinAll();
  ToGenerating();
  h_.Say(kD0, {Generated(d_, {3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_GT(h_.client("r").done->timing.first_token_predicted_ms(), 0);
}

TEST_P(PrefillFailure, AfterTheFirstTokenTheRepeatedOneIsDropped) {
  JoinAll();
  ToPrefilling();
  h_.Say(kP0, {Generated(p_, {0})});
  Fail(kP0, p_);
  EXPECT_TRUE(h_.Next(kD0).has_new_epoch());
  h_.Say(kD0, {Reserved(d_, 0, false, 2)});
  const v1::Prefill again = h_.NextPrefill(kP1);
  EXPECT_EQ(again.sequence().prompt_size(), 100);  // as the lease was reserved for
  EXPECT_EQ(again.sequence().delivered_tokens(), 0);
  h_.Say(kP1, {Generated(again.leg(), {0})});
  EXPECT_EQ(h_.status().duplicate_tokens(), 1);
  h_.Say(kD0, {Installed(d_, 0), Generated(d_, {1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
}

TEST_P(PrefillFailure, WithoutAnotherNodeTheDecodeNodeComputesWhatIsMissing) {
  h_.JoinDecode(kD0, "d0");
  h_.JoinPrefill(kP0, "p0");
  ToPrefilling();
  Fail(kP0, p_);
  const v1::NodeCommand command = h_.Next(kD0);
  ASSERT_TRUE(command.has_new_epoch()) << command.ShortDebugString();
  EXPECT_EQ(command.new_epoch().local_prefill_tokens_max(), -1);
  h_.Say(kD0, {Reserved(d_, 0, true, 2, 64)});
  EXPECT_TRUE(h_.Quiet(kD0));
  h_.Say(kD0, {Installed(d_, -1), Generated(d_, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), attempts());
}

// Two prefill nodes that are full: there is a third one, and the decode node does not wait for it.
TEST_F(RequestTest, AfterTwoFullPrefillNodesTheDecodeNodeComputesThePrompt) {
  JoinAll();
  h_.JoinPrefill(5, "p2");
  ToPrefilling();
  h_.Say(kP0, {Refused(p_, absl::StatusCode::kResourceExhausted)});
  EXPECT_EQ(h_.Next(kD0).new_epoch().local_prefill_tokens_max(), 32);
  h_.Say(kD0, {Reserved(d_, 0, false, 2)});
  const uint64_t second = h_.Quiet(kP1) ? 5 : kP1;
  const v1::Leg again = h_.NextPrefill(second).leg();
  h_.Say(second, {Refused(again, absl::StatusCode::kResourceExhausted)});
  EXPECT_EQ(h_.Next(kD0).new_epoch().local_prefill_tokens_max(), -1);
  h_.Say(kD0, {Reserved(d_, 0, true, 3)});
  h_.Say(kD0, {Installed(d_, -1), Generated(d_, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), 1);
}

// Little is missing: no other sender is asked, though there is one.
TEST_P(PrefillFailure, TheDecodeNodeMayComputeALittleItself) {
  JoinAll();
  ToPrefilling();
  Fail(kP0, p_);
  EXPECT_TRUE(h_.Next(kD0).has_new_epoch());
  h_.Say(kD0, {Reserved(d_, 0, true, 2, 96)});
  EXPECT_TRUE(h_.Quiet(kP1));
  h_.Say(kD0, {Installed(d_, -1), Generated(d_, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
}

// The answer to NewEpoch does not come: the request goes elsewhere.
TEST_F(RequestTest, ADecodeNodeThatDoesNotAnswerNewEpochIsGivenUp) {
  JoinAll();
  ToPrefilling();
  h_.Say(kP0, {LegFailed(p_, true)});
  EXPECT_TRUE(h_.Next(kD0).has_new_epoch());
  for (int i = 0; i < 40 && h_.Quiet(kD1); ++i) {
    for (const uint64_t node : {kD0, kD1, kP0, kP1}) h_.Say(node, {});
    h_.Advance(absl::Milliseconds(500));
  }
  h_.ExpectAbort(kD0, d_.attempt());
  EXPECT_GT(h_.NextRun(kD1).leg().attempt(), d_.attempt());
  EXPECT_TRUE(h_.Quiet(kP1));
}

TEST_F(RequestTest, AfterAFailedPrefillStepTheLeaseIsGivenUpToo) {
  JoinAll();
  ToPrefilling();
  h_.Say(kP0, {LegFailed(p_, false)});
  h_.ExpectAbort(kP0, p_.attempt());
  h_.ExpectAbort(kD0, d_.attempt());
  const v1::Leg again = h_.NextRun(kD1).leg();
  EXPECT_GT(again.attempt(), d_.attempt());
}

// The word of the failed step comes after another sender was asked: what the first one brought is
// kept by the lease, and may be wrong.
TEST_F(RequestTest, AfterAReplacedSendersStepFailedTheLeaseIsGivenUpToo) {
  for (const bool answered : {false, true}) {
    CoreHarness h;
    h.JoinDecode(kD0, "d0");
    h.JoinDecode(kD1, "d1");
    h.JoinPrefill(kP0, "p0");
    h.JoinPrefill(kP1, "p1");
    EXPECT_OK(h.Submit("r", 100, 10));
    const v1::Leg decode = h.NextRun(kD0).leg();
    h.Say(kD0, {Reserved(decode)});
    const v1::Leg first = h.NextPrefill(kP0).leg();
    h.Say(kD0, {LegFailed(decode, true, 1)});
    h.ExpectAbort(kP0, first.attempt());
    EXPECT_TRUE(h.Next(kD0).has_new_epoch());
    if (answered) {
      h.Say(kD0, {Reserved(decode, 0, false, 2, 32)});
      h.NextPrefill(kP1);
    }
    h.Say(kP0, {LegFailed(first, false)});
    h.ExpectAbort(kD0, decode.attempt());
    h.Advance(RetryBudget::kBackoffMin);
    const uint64_t next = h.Quiet(kD0) ? kD1 : kD0;
    EXPECT_GT(h.NextRun(next).leg().attempt(), first.attempt());
    h.Say(kP0, {LegFailed(first, false)});
    EXPECT_TRUE(h.Quiet(next)) << "an earlier placement's";
    h.Finish("r", request::FinishReason::kAborted);
  }
}

// The same where no other sender is left, and the decode node is to compute the rest: before and
// after it has said that it does.
TEST_F(RequestTest, AfterTheOnlySendersStepFailedTheLeaseIsGivenUpToo) {
  for (const bool answered : {false, true}) {
    CoreHarness h;
    h.JoinDecode(kD0, "d0");
    h.JoinDecode(kD1, "d1");
    h.JoinPrefill(kP0, "p0");
    EXPECT_OK(h.Submit("r", 100, 10));
    const v1::Leg decode = h.NextRun(kD0).leg();
    h.Say(kD0, {Reserved(decode)});
    const v1::Leg first = h.NextPrefill(kP0).leg();
    h.Say(kD0, {LegFailed(decode, true, 1)});
    h.ExpectAbort(kP0, first.attempt());
    EXPECT_EQ(h.Next(kD0).new_epoch().local_prefill_tokens_max(), -1);
    if (answered) h.Say(kD0, {Reserved(decode, 0, true, 2, 32)});
    h.Say(kP0, {LegFailed(first, true)});
    EXPECT_TRUE(h.Quiet(kD0)) << "its step did not fail";
    h.Say(kP0, {LegFailed(first, false)});
    h.ExpectAbort(kD0, decode.attempt());
    h.Finish("r", request::FinishReason::kAborted);
    h.ExpectEmpty();
  }
}

// A decode node that has nothing of the sender whose step failed goes on, and so does one that has
// computed the rest.
TEST_F(RequestTest, AFailedStepOfASenderThatBroughtNothingDoesNotMatter) {
  for (const bool installed : {false, true}) {
    CoreHarness h;
    h.JoinDecode(kD0, "d0");
    h.JoinPrefill(kP0, "p0");
    EXPECT_OK(h.Submit("r", 100, 10));
    const v1::Leg decode = h.NextRun(kD0).leg();
    h.Say(kD0, {Reserved(decode)});
    const v1::Leg first = h.NextPrefill(kP0).leg();
    h.Say(kD0, {LegFailed(decode, true, 1)});
    EXPECT_TRUE(h.Next(kD0).has_new_epoch());
    h.Say(kD0, {Reserved(decode, 0, true, 2, installed ? 32 : 0)});
    if (installed) h.Say(kD0, {Installed(decode, -1)});
    h.Say(kP0, {LegFailed(first, false)});
    EXPECT_TRUE(h.Quiet(kD0));
    h.Finish("r", request::FinishReason::kAborted);
  }
}

TEST_F(RequestTest, APlannedPrefillNodeThatIsLostOrDrainsIsReplacedBeforeItIsAsked) {
  JoinAll();
  ToReserving();
  h_.Lose(kP0);
  h_.Say(kD0, {Reserved(d_)});
  h_.NextPrefill(kP1);
  h_.Finish("r", request::FinishReason::kAborted);
  h_.ExpectEmpty();
}

TEST_F(RequestTest, WhenThePlannedPrefillNodeWasTheOnlyOneTheRequestIsPlacedAgain) {
  h_.JoinDecode(kD0, "d0");
  h_.JoinPrefill(kP0, "p0");
  ToReserving();
  h_.Say(kP0, {Drains()});
  h_.Say(kD0, {Reserved(d_)});
  h_.ExpectAbort(kD0, d_.attempt());
  EXPECT_EQ(h_.NextRun(kD0).local_prefill_tokens_max(), -1);
}

TEST_F(RequestTest, AnEarlierSenderMayStillFillTheLease) {
  JoinAll();
  ToPrefilling();
  h_.Say(kP0, {LegFailed(p_, true)});
  EXPECT_TRUE(h_.Next(kD0).has_new_epoch());
  h_.Say(kD0, {Installed(d_, 0)});  // sent before NewEpoch arrived, which is not answered then
  EXPECT_TRUE(h_.Quiet(kP1)) << "nothing is left to send";
  h_.Say(kD0, {Generated(d_, {1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
}

// All scores of a prompt of 100 tokens.
v1::NodeEvent Scored(const v1::Leg& leg) {
  v1::NodeEvent event;
  *event.mutable_prompt_scored()->mutable_leg() = leg;
  event.mutable_prompt_scored()->set_first_index(1);
  for (int i = 1; i < 100; ++i) event.mutable_prompt_scored()->add_tokens();
  return event;
}

// The KV of a node that is lost, or whose leg was replaced, may come after all; its scores do not.
class ScoredRequest : public RequestTest {
 protected:
  // Its prompt's scores come from kP0, its KV goes to kD0.
  void Begin(int max_tokens = 10) {
    JoinAll();
    RequestInput input = CoreHarness::Input("r", 100, max_tokens);
    input.prompt_logprobs = 0;
    ASSERT_OK(h_.Submit(std::move(input)));
    d_ = h_.NextRun(kD0).leg();
    h_.Say(kD0, {Reserved(d_)});
    p_ = h_.NextPrefill(kP0).leg();
  }
};

class LostScores : public ScoredRequest, public ::testing::WithParamInterface<bool> {};
INSTANTIATE_TEST_SUITE_P(SenderIsLost, LostScores, ::testing::Bool());

TEST_P(LostScores, AreComputedAgainWithThePrompt) {
  Begin();
  if (GetParam())
    h_.Lose(kP0);
  else
    h_.Say(kP0, {LegFailed(p_, true)});
  EXPECT_TRUE(h_.Next(kD0).has_new_epoch());
  h_.Say(kD0, {Installed(d_, 0), Generated(d_, {1, 2})});
  h_.ExpectAbort(kD0, d_.attempt());
  EXPECT_FALSE(h_.client("r").done.has_value());
  h_.Advance(absl::Seconds(1));
  const uint64_t node = h_.Quiet(kD0) ? kD1 : kD0;
  const v1::StartDecode again = h_.NextRun(node);
  EXPECT_TRUE(again.sequence().has_prompt_logprobs());
  h_.Say(node, {Reserved(again.leg(), 0, true), Installed(again.leg(), -1)});
  h_.Say(node, {Scored(again.leg()), Generated(again.leg(), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
}

// A sequence that waits to be placed again has lost its sender already.
TEST_F(ScoredRequest, ASenderThatIsLostWhileTheSequenceWaitsIsNoFurtherAttempt) {
  Begin();
  h_.Say(kD1, {Drains()});
  h_.Say(kD0, {LegFailed(d_, false)});
  EXPECT_EQ(h_.core().sequences_queued(), 1) << "the only node that takes it has just failed it";
  h_.Lose(kP0);
  h_.Advance(absl::Seconds(1));
  const v1::StartDecode again = h_.NextRun(kD0);
  h_.Say(kD0, {Reserved(again.leg(), 0, true), Installed(again.leg(), -1)});
  h_.Say(kD0, {Scored(again.leg()), Generated(again.leg(), {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), 2);
}

// The decode node scores a prompt that it computes: it needs no earlier sender.
TEST_F(ScoredRequest, ASenderThatIsLostAfterItWasReplacedDoesNotMatter) {
  for (const bool answered : {false, true}) {
    CoreHarness h;
    h.JoinDecode(kD0, "d0");
    h.JoinPrefill(kP0, "p0");
    RequestInput input = CoreHarness::Input("r", 100, 10);
    input.prompt_logprobs = 0;
    ASSERT_OK(h.Submit(std::move(input)));
    const v1::Leg decode = h.NextRun(kD0).leg();
    h.Say(kD0, {Reserved(decode)});
    h.Say(kP0, {LegFailed(h.NextPrefill(kP0).leg(), true)});
    EXPECT_TRUE(h.Next(kD0).has_new_epoch());
    if (answered) h.Say(kD0, {Reserved(decode, 0, true, 2)});
    h.Lose(kP0);
    EXPECT_TRUE(h.Quiet(kD0));
    if (!answered) h.Say(kD0, {Reserved(decode, 0, true, 2)});
    h.Say(kD0, {Installed(decode, -1), Scored(decode),
                Generated(decode, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
    ASSERT_TRUE(h.client("r").done.has_value()) << h.client("r").failure;
    EXPECT_EQ(h.client("r").done->route.attempts(), 2) << "the sender that failed, and no more";
    h.ExpectEmpty();
  }
}

// No token is left to compute, so the KV need not arrive; the scores cannot come any more.
TEST_F(ScoredRequest, ACompleteAnswerFailsWithTheNodeThatWasToScoreItsPrompt) {
  Begin(/*max_tokens=*/1);
  h_.Say(kP0, {Generated(p_, {0})});
  EXPECT_FALSE(h_.client("r").done.has_value());
  h_.Lose(kP0);
  EXPECT_FALSE(h_.client("r").failure.ok());
  h_.ExpectEmpty();
}

TEST_F(RequestTest, PrefillNodeLostAfterInstalledDoesNotMatter) {
  JoinAll();
  ToGenerating();
  h_.Lose(kP0);
  EXPECT_TRUE(h_.Quiet(kD0));
  h_.Say(kD0, {Generated(d_, {3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), 1);
}

}  // namespace
}  // namespace tandem::router
