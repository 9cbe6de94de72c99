// Goal: one request over scripted nodes takes every transition of the diagram: both legs, local
// prefill, refusals, losses, failures and deadlines in each state; the client sees each token once,
// in order, and one end; nothing stays on any node's books.
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(RequestTest, LegsAreFoundByNumberAlone) {
  JoinAll();
  ASSERT_OK(h_.Submit("other"));
  const v1::Leg other = h_.NextRun(kD0).leg();
  ASSERT_OK(h_.Submit("r"));
  const v1::Leg leg = h_.NextRun(kD1).leg();
  ASSERT_NE(leg.number(), other.number());
  ASSERT_NE(leg.number(), 0u);
  v1::Leg number = leg, name = leg, unknown = leg;
  number.clear_request_id();
  name.clear_number();
  h_.Say(kD1, {Reserved(name, 0, true), Refused(name, absl::StatusCode::kUnavailable)});
  EXPECT_EQ(h_.core().request_counts().total(), 2) << "a name alone identifies no leg";
  unknown.clear_request_id();
  unknown.set_number(leg.number() + 1);
  h_.Say(kD1, {Reserved(leg, 0, true), Installed(leg, -1), Generated(leg, {0})});
  h_.Say(kD1, {Generated(number, {1, 2})});
  h_.Say(kD1, {Generated(unknown, {3})});
  h_.Say(kD0, {Generated(number, {3})});  // another node's
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500, 501, 502));
  EXPECT_THAT(h_.client("other").tokens, ElementsAre());
  v1::NodeEvent lists;
  v1::TokensGenerated::Plain& plain = *lists.mutable_tokens()->mutable_plain();
  for (int i = 3; i < 10; ++i) {
    plain.add_leg_numbers(leg.number());
    plain.add_leg_attempts(leg.attempt());
    plain.add_token_ids(500 + i);
    plain.add_indices(i);
    plain.add_logprobs(-0.5f);
  }
  h_.Say(kD0, {lists});
  EXPECT_FALSE(h_.client("r").done.has_value()) << "another node's";
  h_.Say(kD1, {lists});
  EXPECT_TRUE(h_.client("r").done.has_value());
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500, 501, 502, 503, 504, 505, 506, 507, 508, 509));
  h_.Say(kD1, {Generated(number, {9}), LegFinished(leg, v1::FINISH_REASON_LENGTH, 10)});  // late
  EXPECT_EQ(h_.client("r").ends, 1);
}

// Both requests have the same id, nodes and attempts: only the numbers differ.
TEST_F(RequestTest, AReusedIdHearsNothingOfItsPredecessor) {
  h_.JoinDecode(kD0, "d0");
  h_.JoinPrefill(kP0, "p0");
  ToPrefilling();
  const v1::Leg old_decode = d_, old_prefill = p_;
  h_.Finish("r", request::FinishReason::kAborted);
  h_.ExpectAbort(kP0, old_prefill.attempt());
  h_.ExpectAbort(kD0, old_decode.attempt());
  h_.client("r") = {};
  ToPrefilling();
  ASSERT_EQ(d_.attempt(), old_decode.attempt());
  ASSERT_EQ(p_.attempt(), old_prefill.attempt());
  h_.Say(kP0, {GeneratedToken(old_prefill, 0, 7), PrefillFinished(old_prefill, 100, 0)});
  h_.Say(kD0, {Reserved(old_decode), Installed(old_decode, 0), GeneratedToken(old_decode, 1, 7)});
  EXPECT_THAT(h_.client("r").tokens, ElementsAre());
  h_.Say(kD0, {LegFinished(old_decode, v1::FINISH_REASON_LENGTH, 2), LegFailed(old_decode, false)});
  h_.Say(kP0, {LegFailed(old_prefill, true), Refused(old_prefill, absl::StatusCode::kUnavailable)});
  for (const uint64_t node : {kD0, kP0}) EXPECT_TRUE(h_.Quiet(node)) << node;
  h_.Say(kP0, {Generated(p_, {0}), PrefillFinished(p_, 100, 0)});
  h_.Say(kD0, {Installed(d_, 0), Generated(d_, {1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
}

TEST_F(RequestTest, BothLegsToTheEnd) {
  JoinAll();
  ASSERT_OK(h_.Submit("r"));
  h_.Advance(absl::Milliseconds(5));
  const v1::StartDecode run = h_.NextRun(kD0);
  EXPECT_EQ(run.local_prefill_tokens_max(), 32);
  EXPECT_EQ(run.sequence().prompt_size(), 100);
  EXPECT_EQ(run.sequence().stop().max_tokens(), 10);
  h_.Say(kD0, {Reserved(run.leg(), 8)});
  const v1::Prefill prefill = h_.NextPrefill(kP0);
  EXPECT_EQ(prefill.lease_id(), 77u);
  EXPECT_EQ(prefill.epoch(), 1u);
  EXPECT_EQ(prefill.first_ordinal(), 2);
  EXPECT_EQ(prefill.receiver_node_id(), "d0");
  EXPECT_EQ(prefill.receiver_incarnation(), 1u);
  EXPECT_EQ(prefill.receiver_address(), "address of d0");
  EXPECT_EQ(prefill.receiver_host(), "host of d0");
  EXPECT_NE(prefill.leg().attempt(), run.leg().attempt());
  h_.Advance(absl::Milliseconds(20));
  h_.Say(kP0, {Generated(prefill.leg(), {0}), PrefillFinished(prefill.leg(), 60, 40)});
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500));  // before the transfer is over
  h_.Advance(absl::Milliseconds(3));
  h_.Say(kD0, {Installed(run.leg(), 0, 92, 8)});
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500));
  EXPECT_EQ(h_.status().duplicate_tokens(), 0);
  h_.Say(kD0, {Generated(run.leg(), {1, 2, 3})});
  h_.Advance(absl::Milliseconds(2));
  h_.Say(kD0, {Generated(run.leg(), {4, 5, 6, 7, 8, 9}),
               LegFinished(run.leg(), v1::FINISH_REASON_LENGTH, 10)});
  ExpectDone(10);
  EXPECT_TRUE(h_.Quiet(kD0));  // it knows that it is done
  EXPECT_TRUE(h_.Quiet(kP0));
  const SequenceDone& done = *h_.client("r").done;
  EXPECT_EQ(done.usage.prompt_tokens(), 100);
  EXPECT_EQ(done.usage.output_tokens(), 10);
  EXPECT_EQ(done.usage.cached_tokens(), 40);
  EXPECT_EQ(done.route.prefill_node(), "p0");
  EXPECT_EQ(done.route.decode_node(), "d0");
  EXPECT_EQ(done.route.attempts(), 1);
  EXPECT_EQ(done.route.prefill_tokens().computed(), 60);
  EXPECT_EQ(done.route.decode_tokens().received(), 92);
  EXPECT_EQ(done.route.kv_bytes_moved(), 4096);
  EXPECT_EQ(done.route.kv_transfer_ms(), 2.5);
  EXPECT_EQ(done.route.kv_receive_ms(), 0.5);
  EXPECT_EQ(done.route.transport(), "shm");
  EXPECT_DOUBLE_EQ(done.timing.queue_ms(), 0);
  EXPECT_DOUBLE_EQ(done.timing.reserve_ms(), 5);
  EXPECT_DOUBLE_EQ(done.timing.prefill_ms(), 20);
  EXPECT_DOUBLE_EQ(done.timing.first_token_ms(), 25);
  EXPECT_DOUBLE_EQ(done.timing.install_ms(), 3);
  EXPECT_DOUBLE_EQ(done.timing.total_ms(), 30);
  EXPECT_THAT(done.timing.gap_ms(), ElementsAre(3, 0, 0, 2, 0, 0, 0, 0, 0));
  EXPECT_EQ(h_.core().GetStatus(h_.now()).nodes(0).transport(), "shm");
}

TEST_F(RequestTest, InstalledsFirstTokenIsDeliveredWhenItComesFirst) {
  JoinAll();
  ToPrefilling();
  h_.Say(kD0, {Installed(d_, 0), Generated(d_, {1})});
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500, 501));
  h_.Say(kP0, {Generated(p_, {0}), PrefillFinished(p_, 100, 0)});  // late: dropped
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500, 501));
  h_.Say(kD0, {Generated(d_, {2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_EQ(h_.client("r").done->route.prefill_tokens().computed(), 100);
}

TEST_F(RequestTest, OutOfOrderTokensWaitDuplicatesAreDroppedDivergenceIsCounted) {
  JoinAll();
  ToGenerating();
  h_.Say(kD0, {Generated(d_, {5, 4})});
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500, 501, 502));
  h_.Say(kD0, {Generated(d_, {2, 3})});
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500, 501, 502, 503, 504, 505));
  EXPECT_EQ(h_.status().duplicate_tokens(), 1);
  EXPECT_EQ(h_.status().diverged_tokens(), 0);
  h_.Say(kD0, {GeneratedToken(d_, 1, 7)});
  EXPECT_EQ(h_.status().duplicate_tokens(), 2);
  EXPECT_EQ(h_.status().diverged_tokens(), 1);
  h_.Say(kD0, {Generated(d_, {6, 7, 8, 9})});
  ExpectDone(10);
}

TEST_F(RequestTest, LocalPrefillSkipsThePrefillNode) {
  JoinAll();
  ToReserving();
  EXPECT_GT(h_.core().fleet().Find(NodeKey(kP0))->prefill_tokens_ahead, 0);  // planned
  h_.Say(kD0, {Reserved(d_, 60, true)});
  EXPECT_EQ(h_.core().fleet().Find(NodeKey(kP0))->prefill_tokens_ahead, 0);
  EXPECT_TRUE(h_.Quiet(kP0));
  v1::NodeEvent installed = Installed(d_, -1, 0, 60);
  installed.mutable_installed()->mutable_tokens()->set_computed(40);
  h_.Say(kD0, {installed, Generated(d_, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
  EXPECT_EQ(h_.client("r").done->usage.cached_tokens(), 60);
  EXPECT_EQ(h_.client("r").done->route.prefill_node(), "");
}

TEST_F(RequestTest, WithoutPrefillNodesTheDecodeNodeAlwaysComputes) {
  h_.JoinDecode(kD0, "d0");
  ASSERT_OK(h_.Submit("r"));
  EXPECT_EQ(h_.NextRun(kD0).local_prefill_tokens_max(), -1);
}

TEST_F(RequestTest, EosOrLengthOnTheFirstTokenEndsAtOnceAndAbortsTheLease) {
  JoinAll();
  ToPrefilling();
  h_.Say(kP0, {GeneratedToken(p_, 0, 999), PrefillFinished(p_, 70, 30)});
  const ClientView& client = h_.client("r");
  ASSERT_TRUE(client.done.has_value());
  EXPECT_THAT(client.tokens, ElementsAre(999));
  EXPECT_EQ(client.done->reason, request::FinishReason::kStop);
  EXPECT_EQ(client.done->usage.cached_tokens(), 30);  // from the same message as the last token
  h_.ExpectAbort(kD0, d_.attempt());
  h_.ExpectEmpty();
}

TEST_F(RequestTest, TheDecodeLegsOwnEndCounts) {
  JoinAll();
  ToGenerating();
  h_.Say(kD0, {LegFinished(d_, v1::FINISH_REASON_STOP, 3)});
  ASSERT_TRUE(h_.client("r").done.has_value());
  EXPECT_EQ(h_.client("r").done->reason, request::FinishReason::kStop);
  EXPECT_EQ(h_.client("r").done->usage.output_tokens(), 3);
  EXPECT_TRUE(h_.Quiet(kD0));
  h_.ExpectEmpty();
}

TEST_F(RequestTest, AnEndThatLeavesTokensOutIsAFailure) {
  for (const bool gap : {false, true}) {
    CoreHarness h;
    h.JoinDecode(kD0, "d0");
    h.JoinDecode(kD1, "d1");
    ASSERT_OK(h.Submit("r"));
    const v1::Leg leg = h.NextRun(kD0).leg();
    h.Say(kD0, {Reserved(leg, 0, true),
                Generated(leg, gap ? std::vector<int>{0, 2} : std::vector<int>{0}),
                LegFinished(leg, v1::FINISH_REASON_STOP, gap ? 1 : 2)});
    EXPECT_FALSE(h.client("r").done.has_value());
    h.ExpectAbort(kD0, leg.attempt());
    EXPECT_EQ(h.NextRun(kD1).sequence().delivered_tokens(), 1);
  }
}

// ---- decode leg

TEST_F(RequestTest, DecodeLostWhileReserving) {
  JoinAll();
  ToReserving();
  h_.Lose(kD0);
  FinishLocally(kD1, 0, 10);
}

TEST_F(RequestTest, DecodeLostWhilePrefillingAbortsThePrefillLeg) {
  JoinAll();
  ToPrefilling();
  h_.Lose(kD0);
  h_.ExpectAbort(kP0, p_.attempt());
  FinishLocally(kD1, 0, 10);
}

TEST_F(RequestTest, DecodeLostWhileInstallingGoesOnAfterTheFirstToken) {
  JoinAll();
  ToInstalling();
  h_.Lose(kD0);
  h_.ExpectAbort(kP0, p_.attempt());
  FinishLocally(kD1, 1, 10);
}

TEST_F(RequestTest, DecodeLostWhileGeneratingGoesOnAfterWhatWasDelivered) {
  JoinAll();
  ToGenerating();
  h_.Lose(kD0);
  EXPECT_TRUE(h_.Quiet(kP0));  // its leg had ended
  FinishLocally(kD1, 3, 10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), 2);
  EXPECT_EQ(h_.client("r").done->route.decode_node(), "d1");
  EXPECT_EQ(h_.client("r").done->usage.prompt_tokens(), 100);
  EXPECT_EQ(h_.status().duplicate_tokens(), 0);
}

TEST_F(RequestTest, DecodeLegFailsWhileGeneratingAndItsLateEventsAreIgnored) {
  JoinAll();
  ToGenerating();
  h_.Say(kD0, {Generated(d_, {4}), LegFailed(d_, false)});  // 4 waited for 3 and is forgotten
  h_.Say(kD0, {Generated(d_, {3, 4, 5}), LegFinished(d_, v1::FINISH_REASON_LENGTH, 10)});
  EXPECT_THAT(h_.client("r").tokens, ElementsAre(500, 501, 502));
  FinishLocally(kD1, 3, 10);
}

// The last token ends the leg before LegFinished of the same message is read.
TEST_F(RequestTest, WhatASequenceLentIsInItsReport) {
  JoinAll();
  ToGenerating();
  v1::NodeEvent finished = LegFinished(d_, v1::FINISH_REASON_LENGTH, 10);
  v1::LentUse& lent = *finished.mutable_leg_finished()->mutable_lent();
  lent.set_tokens_max(512);
  lent.add_creditors()->set_node_id("d1");
  h_.Say(kD0, {Generated(d_, {3, 4, 5, 6, 7, 8, 9}), finished});
  ExpectDone(10);
  const v1::LentUse& reported = h_.client("r").done->route.lent();
  EXPECT_EQ(reported.tokens_max(), 512);
  ASSERT_EQ(reported.creditors_size(), 1);
  EXPECT_EQ(reported.creditors(0).node_id(), "d1");
}

// The router ended the answer, for a stop string or for its client; the decode node answers the
// abort with what the sequence had lent.
TEST_F(RequestTest, WhatAnAbortedSequenceLentIsReportedAfterItsEnd) {
  JoinAll();
  ToGenerating();
  v1::NodeEvent finished = LegFinished(d_, v1::FINISH_REASON_ABORTED, 3);
  finished.mutable_leg_finished()->mutable_lent()->set_tokens_max(512);
  h_.core().FinishSequence(RequestId("r"), 0, request::FinishReason::kStop, h_.now());
  h_.Say(kD0, {finished});
  ASSERT_TRUE(h_.client("r").done.has_value());
  EXPECT_FALSE(h_.client("r").done->route.has_lent());
  ASSERT_EQ(h_.lent_reports().size(), 1u);
  const LentReport& report = h_.lent_reports().front();
  EXPECT_EQ(report.request_id, "r");
  EXPECT_EQ(report.leg, h_.client("r").done->decode_leg);
  EXPECT_EQ(report.leg, (LegName{d_.number(), d_.attempt()}));
  EXPECT_EQ(report.decode_node, "d0");
  EXPECT_EQ(report.lent.tokens_max(), 512);
  // Of a sequence that had lent nothing there is nothing to say.
  finished.mutable_leg_finished()->clear_lent();
  h_.Say(kD0, {finished});
  EXPECT_EQ(h_.lent_reports().size(), 1u);
}

TEST_F(RequestTest, ALegThatADrainingNodeHandsOverIsNoAttempt) {
  JoinAll();
  ToGenerating();
  v1::NodeEvent draining;
  draining.mutable_draining();
  h_.Say(kD0, {draining, LegFailed(d_, false)});
  FinishLocally(kD1, 3, 10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), 1);
}

// A constraint that leaves no token would leave none anywhere: no retry.
TEST_F(RequestTest, ARequestAtFaultIsNotTriedElsewhere) {
  JoinAll();
  ToGenerating();
  v1::NodeEvent failed = LegFailed(d_, false);
  *failed.mutable_leg_failed()->mutable_status() =
      WireStatus(absl::StatusCode::kInvalidArgument, "guided: nothing fits");
  failed.mutable_leg_failed()->set_request_at_fault(true);
  h_.Say(kD0, {failed});
  EXPECT_EQ(h_.client("r").failure, absl::InvalidArgumentError("guided: nothing fits"));
  EXPECT_TRUE(h_.Quiet(kD1));
  h_.ExpectEmpty();
}

// The second retry waits, at most kBackoffMin, and holds up nobody else.
TEST_F(RequestTest, LaterRetriesWait) {
  JoinAll();
  ToGenerating();
  h_.Say(kD0, {LegFailed(d_, false)});
  const v1::Leg second = h_.NextRun(kD1).leg();
  h_.Advance(absl::Seconds(2));  // the first failure is forgotten
  for (const uint64_t node : {kD0, kD1, kP0, kP1}) h_.Say(node, {});
  h_.Say(kD1, {LegFailed(second, false)});
  EXPECT_TRUE(h_.Quiet(kD0)) << "it waits";
  ASSERT_OK(h_.Submit("other"));
  const uint64_t others = h_.Quiet(kD0) ? kD1 : kD0;
  EXPECT_EQ(h_.NextRun(others).leg().request_id(), "other");
  h_.Advance(RetryBudget::kBackoffMin);
  EXPECT_EQ(h_.NextRun(kD0).leg().request_id(), "r");
}

TEST_F(RequestTest, ARetriedPlacementMayUseAPrefillNodeAgain) {
  JoinAll();
  ToGenerating();
  h_.Lose(kD0);
  const v1::StartDecode run = h_.NextRun(kD1);
  h_.Say(kD1, {Reserved(run.leg())});
  const v1::Prefill prefill = h_.NextPrefill(kP0);
  EXPECT_EQ(prefill.sequence().delivered_tokens(), 3);
  h_.Say(kP0, {Generated(prefill.leg(), {3})});
  EXPECT_EQ(h_.client("r").tokens.size(), 4u);
  h_.Say(kD1, {Installed(run.leg(), 3), Generated(run.leg(), {4, 5, 6, 7, 8, 9})});
  ExpectDone(10);
}

TEST_F(RequestTest, RefusedForRoomTriesTheNextBestThenWaitsWithBackoff) {
  JoinAll();
  ToReserving();
  h_.Say(kD0, {Refused(d_, absl::StatusCode::kResourceExhausted)});
  const v1::Leg second = h_.NextRun(kD1).leg();
  h_.Say(kD1, {Refused(second, absl::StatusCode::kResourceExhausted)});
  EXPECT_EQ(h_.core().sequences_queued(), 1);
  EXPECT_TRUE(h_.Quiet(kD0));
  h_.Advance(absl::Milliseconds(50));  // the first backoff is 20 ms
  FinishLocally(kD0, 0, 10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), 1);  // refusals are not failures
}

TEST_F(RequestTest, RefusedAsInvalidFails) {
  JoinAll();
  ToReserving();
  h_.Say(kD0, {Refused(d_, absl::StatusCode::kInvalidArgument)});
  EXPECT_THAT(h_.client("r").failure, testing::StatusIs(absl::StatusCode::kInvalidArgument,
                                                        HasSubstr("refused by the test")));
  h_.ExpectEmpty();
}

TEST_F(RequestTest, RefusedForAnotherReasonCountsAsAnAttempt) {
  JoinAll();
  ToReserving();
  h_.Say(kD0, {Refused(d_, absl::StatusCode::kUnavailable)});
  FinishLocally(kD1, 0, 10);
  EXPECT_EQ(h_.client("r").done->route.attempts(), 2);
}

TEST_F(RequestTest, GivesUpAfterAttemptsMax) {
  h_.JoinDecode(kD0, "d0");
  h_.JoinDecode(kD1, "d1");
  ASSERT_OK(h_.Submit("r"));
  for (int attempt = 0; attempt < 4; ++attempt) {
    const uint64_t key = attempt % 2 == 0 ? kD0 : kD1;  // who did not just fail is next
    h_.Advance(absl::Seconds(2));                       // failures are forgotten
    const v1::Leg leg = h_.NextRun(key).leg();
    h_.Say(kD0, {});
    h_.Say(kD1, {});
    h_.Say(key, {LegFailed(leg, false)});
    h_.Advance(absl::Milliseconds(100));  // later retries wait a little
  }
  EXPECT_THAT(h_.client("r").failure,
              testing::StatusIs(
                  absl::StatusCode::kUnavailable,
                  ::testing::AllOf(HasSubstr("4 attempts"), HasSubstr("failed by the test"))));
  h_.ExpectEmpty();
}

TEST_F(RequestTest, HostileTokensFailTheLegNotTheRouter) {
  h_.JoinDecode(kD0, "d0");
  h_.JoinDecode(kD1, "d1");
  ToReserving();
  h_.Say(kD0, {Reserved(d_, 1 << 30, true), GeneratedToken(d_, 0, 100000)});
  h_.ExpectAbort(kD0, d_.attempt());
  const v1::Leg second = h_.NextRun(kD1).leg();
  std::vector<int> ahead;
  for (int i = 1; i < 200; ++i) ahead.push_back(i);
  h_.Say(kD1, {Reserved(second, -5, true), Generated(second, ahead)});
  h_.ExpectAbort(kD1, second.attempt());
  EXPECT_TRUE(h_.client("r").tokens.empty());
}

TEST_F(RequestTest, EventsOutOfStateOrOfOthersAreIgnored) {
  JoinAll();
  ToReserving();
  v1::Leg unknown = d_, other_sequence = d_;
  unknown.set_request_id("nobody");
  other_sequence.set_sequence_index(3);
  h_.Say(kD0, {Generated(d_, {0}), Installed(d_, 0), Reserved(unknown), Reserved(other_sequence)});
  h_.Say(kD1, {Reserved(d_)});  // not the node it was placed on
  EXPECT_TRUE(h_.client("r").tokens.empty());
  EXPECT_TRUE(h_.Quiet(kP0));
  h_.Say(kD0, {Reserved(d_), Reserved(d_)});
  p_ = h_.NextPrefill(kP0).leg();
  EXPECT_TRUE(h_.Quiet(kP0));
  EXPECT_TRUE(h_.Quiet(kP1));
}

// ---- ends from outside

class CancelTest : public RequestTest, public ::testing::WithParamInterface<int> {};
INSTANTIATE_TEST_SUITE_P(States, CancelTest, ::testing::Range(0, 5));

TEST_P(CancelTest, EndsBothLegsInEveryStateOnce) {
  if (GetParam() == 0) {
    ASSERT_OK(h_.Submit("r"));  // no node: queued
  } else {
    JoinAll();
    if (GetParam() == 1) ToReserving();
    if (GetParam() == 2) ToPrefilling();
    if (GetParam() == 3) ToInstalling();
    if (GetParam() == 4) ToGenerating();
  }
  h_.Finish("r", request::FinishReason::kAborted);
  ASSERT_TRUE(h_.client("r").done.has_value());
  EXPECT_EQ(h_.client("r").done->reason, request::FinishReason::kAborted);
  if (GetParam() >= 1) h_.ExpectAbort(kD0, d_.attempt());
  if (GetParam() == 2 || GetParam() == 3) h_.ExpectAbort(kP0, p_.attempt());
  EXPECT_TRUE(h_.Quiet(kD0));
  EXPECT_TRUE(h_.Quiet(kP0));
  h_.ExpectEmpty();
  h_.Finish("r", request::FinishReason::kStop);  // idempotent
  EXPECT_EQ(h_.client("r").ends, 1);
  if (GetParam() >= 1) h_.Say(kD0, {Reserved(d_), Generated(d_, {0, 1, 2, 3}), Installed(d_, 0)});
  EXPECT_EQ(h_.client("r").ends, 1);
}

TEST_F(RequestTest, AStopStringEndsWithStop) {
  JoinAll();
  ToGenerating();
  h_.Finish("r", request::FinishReason::kStop);
  EXPECT_EQ(h_.client("r").done->reason, request::FinishReason::kStop);
  h_.ExpectAbort(kD0, d_.attempt());
}

TEST_F(RequestTest, DeadlinesOfReservingAndGeneratingMoveTheRequest) {
  JoinAll();
  ToReserving();
  const auto alive = [&](int seconds) {
    for (int i = 0; i < seconds; ++i) {
      for (const uint64_t node : {kD0, kD1, kP0, kP1}) h_.Say(node, {});
      h_.Advance(absl::Seconds(1));
    }
  };
  alive(11);
  h_.ExpectAbort(kD0, d_.attempt());
  const v1::Leg second = h_.NextRun(kD1).leg();
  h_.Say(kD1, {Reserved(second, 0, true), Generated(second, {0, 1})});
  alive(50);
  h_.Say(kD1, {Generated(second, {2})});  // progress renews the deadline
  alive(50);
  EXPECT_TRUE(h_.Quiet(kD1));
  alive(12);
  h_.ExpectAbort(kD1, second.attempt());
  FinishLocally(kD0, 3, 10);
}

}  // namespace
}  // namespace tandem::router
