// Goal: the end of a request says how many tokens nodes computed for it, however it ended: what a
// quota charges. Tokens that the client does not get count as well; a request that no node ever
// took costs nothing.
#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

class ComputedTokensTest : public RequestTest {};

TEST_F(ComputedTokensTest, CountsPromptAndAnswer) {
  JoinAll();
  ASSERT_OK(h_.Submit("r", 100, 3));
  const v1::Leg leg = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(leg, 0, true)});
  h_.Say(kD0, {Installed(leg, -1), Generated(leg, {0, 1, 2})});
  ASSERT_TRUE(h_.client("r").done.has_value());
  EXPECT_EQ(h_.client("r").done->computed_tokens, 103);
}

TEST_F(ComputedTokensTest, ClosingEarlyIsNotFree) {
  JoinAll();
  ASSERT_OK(h_.Submit("r", 100, 10));
  const v1::Leg leg = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(leg, 0, true)});
  h_.Finish("r", request::FinishReason::kAborted);
  ASSERT_TRUE(h_.client("r").done.has_value());
  EXPECT_EQ(h_.client("r").done->computed_tokens, 100);
}

TEST_F(ComputedTokensTest, WhatNoNodeTookIsFree) {
  ASSERT_OK(h_.Submit("r", 100, 10));
  h_.Finish("r", request::FinishReason::kAborted);
  ASSERT_TRUE(h_.client("r").done.has_value());
  EXPECT_EQ(h_.client("r").done->computed_tokens, 0);
}

TEST_F(ComputedTokensTest, EverySequenceCounts) {
  JoinAll();
  RequestInput input = CoreHarness::Input("r", 100, 4);
  input.sequences = 2;
  ASSERT_OK(h_.Submit(std::move(input)));
  const v1::Leg first = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(first, 0, true)});
  h_.Say(kD0, {Installed(first, -1), Generated(first, {0})});
  const v1::Leg second = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(second, 96, true)});
  h_.Say(kD0, {Installed(second, -1), Generated(second, {0, 1})});
  h_.Finish("r", request::FinishReason::kAborted);
  const bool second_last = h_.client("r#1").done->last;
  EXPECT_EQ((second_last ? h_.client("r#1") : h_.client("r")).done->computed_tokens, 103);
}

TEST_F(ComputedTokensTest, FailingIsNotFree) {
  JoinAll();
  ASSERT_OK(h_.Submit("r", 100, 10));
  const v1::Leg leg = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Refused(leg, absl::StatusCode::kInvalidArgument)});
  EXPECT_FALSE(h_.client("r").failure.ok());
  EXPECT_EQ(h_.client("r").failed_after, 100);
}

// A beam search computes a token for each beam in each step; the client gets one answer.
TEST_F(ComputedTokensTest, EveryBeamCounts) {
  JoinAll();
  RequestInput input = CoreHarness::Input("r", 100, 1);
  input.beams = BeamParams{.width = 4};
  input.sampling.Edit().logprobs = 8;
  ASSERT_OK(h_.Submit(std::move(input)));
  const v1::Leg leg = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(leg, 0, true)});
  v1::NodeEvent step = Generated(leg, {0});
  v1::GeneratedToken& token = *step.mutable_tokens()->mutable_steps(0)->mutable_tokens(0);
  for (int i = 0; i < 8; ++i) {
    token.add_top_logprobs()->set_token_id(10 + i);
    token.mutable_top_logprobs(i)->set_logprob(static_cast<float>(-1 - i));
  }
  h_.Say(kD0, {Installed(leg, -1), step});
  ASSERT_TRUE(h_.client("r").done.has_value()) << h_.client("r").failure;
  EXPECT_EQ(h_.client("r").done->computed_tokens, 101);
}

}  // namespace
}  // namespace tandem::router
