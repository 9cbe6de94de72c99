// Goal: the sequences of one request, at the router alone: the others wait for the first one's
// prompt and follow it to its decode node; when that is lost, full or over they still end; they
// fail, are aborted and meet their deadline as one.
#include <gmock/gmock.h>

#include <limits>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/unit/router/request_fixture.h"

namespace tandem::router {
namespace {

class SequencesTest : public RequestTest {
 protected:
  void SetUp() override { JoinAll(); }
  void SubmitSequences(int sequences, int max_tokens = 10) {
    RequestInput input = CoreHarness::Input("r", 100, max_tokens);
    input.sequences = sequences;
    ASSERT_OK(h_.Submit(std::move(input)));
  }
  // Brings the first sequence to where its prompt lies on d0.
  void InstallLeader() {
    leader_ = h_.NextRun(kD0).leg();
    h_.Say(kD0, {Reserved(leader_)});
    const v1::Leg prefill = h_.NextPrefill(kP0).leg();
    h_.Say(kP0, {Generated(prefill, {0}), PrefillFinished(prefill, 100, 0)});
    EXPECT_TRUE(h_.Quiet(kD0) && h_.Quiet(kD1)) << "the others do not wait";
    h_.Say(kD0, {Installed(leader_, 0)});
  }
  v1::Leg ExpectRun(uint64_t key, int32_t index) {
    const v1::StartDecode run = h_.NextRun(key);
    EXPECT_EQ(run.leg().sequence_index(), index);
    return run.leg();
  }
  void ExpectDoneWith(const std::string& view, int tokens, bool last) {
    ASSERT_TRUE(h_.client(view).done.has_value()) << view << " " << h_.client(view).failure;
    EXPECT_EQ(static_cast<int>(h_.client(view).tokens.size()), tokens) << view;
    EXPECT_EQ(h_.client(view).done->last, last) << view;
    EXPECT_EQ(h_.client(view).done->usage.prompt_tokens(), view == "r" ? 100 : 0) << view;
  }
  static std::vector<int> Indices(int from, int to) {
    std::vector<int> all;
    for (int i = from; i < to; ++i) all.push_back(i);
    return all;
  }

  v1::Leg leader_;
};

TEST_F(SequencesTest, ASequenceWithoutOthersExpectsNoForks) {
  SubmitSequences(1);
  EXPECT_FALSE(h_.NextRun(kD0).forks_follow());
}

TEST_F(SequencesTest, BeamsExpectForks) {
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.beams = BeamParams{.width = 2};
  ASSERT_OK(h_.Submit(std::move(input)));
  EXPECT_TRUE(h_.NextRun(kD0).forks_follow());
}

// A search whose node names no likeliest tokens cannot go on. Its client is told.
TEST_F(SequencesTest, ABeamStepWithoutCandidatesFails) {
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.beams = BeamParams{.width = 2};
  ASSERT_OK(h_.Submit(std::move(input)));
  const v1::Leg leg = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(leg, 0, true)});
  h_.Say(kD0, {Installed(leg, -1), Generated(leg, {0})});
  EXPECT_THAT(h_.client("r").failure,
              testing::StatusIs(absl::StatusCode::kDataLoss, ::testing::HasSubstr("beam search")));
  EXPECT_EQ(h_.client("r").failed_after, 101);
  h_.ExpectEmpty();
}

// Its beams would be compared by scores of two kinds.
TEST_F(SequencesTest, ABeamSearchDoesNotGoOnUnderOtherNumerics) {
  CoreHarness h;
  h.JoinDecode(kD0, "d0");
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.beams = BeamParams{.width = 2};
  ASSERT_OK(h.Submit(std::move(input)));
  const auto answer = [&h](uint64_t node) {
    const v1::Leg leg = h.NextRun(node).leg();
    v1::NodeEvent step = Generated(leg, {0});
    v1::GeneratedToken& token = *step.mutable_tokens()->mutable_steps(0)->mutable_tokens(0);
    for (int i = 0; i < 3; ++i) {
      token.add_top_logprobs()->set_token_id(10 + i);
      token.mutable_top_logprobs(i)->set_logprob(static_cast<float>(-1 - i));
    }
    h.Say(node, {Reserved(leg, 0, true), Installed(leg, -1), step});
  };
  answer(kD0);
  EXPECT_OK(h.client("r").failure);
  h.Lose(kD0);
  v1::Registration other = TestRegistration("d1", v1::NODE_ROLE_DECODE);
  other.set_numerics_id("n2");
  ASSERT_OK(h.Join(kD1, other));
  for (int i = 0; i < 100 && h.Quiet(kD1); ++i) h.Advance(absl::Milliseconds(50));
  answer(kD1);
  EXPECT_THAT(h.client("r").failure,
              testing::StatusIs(absl::StatusCode::kUnavailable,
                                ::testing::HasSubstr("began under numerics id n1")));
  h.ExpectEmpty();
}

// Each of its steps has what is left of the deadline; the client knows the whole.
TEST_F(SequencesTest, ABeamSearchThatIsLateNamesTheRequestsDeadline) {
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.beams = BeamParams{.width = 2};
  input.answer_deadline = absl::Seconds(2);
  ASSERT_OK(h_.Submit(std::move(input)));
  const v1::Leg leg = h_.NextRun(kD0).leg();
  v1::NodeEvent step = Generated(leg, {0});
  v1::GeneratedToken& token = *step.mutable_tokens()->mutable_steps(0)->mutable_tokens(0);
  for (int i = 0; i < 3; ++i) {
    token.add_top_logprobs()->set_token_id(10 + i);
    token.mutable_top_logprobs(i)->set_logprob(static_cast<float>(-1 - i));
  }
  h_.Advance(absl::Milliseconds(1900));
  h_.Say(kD0, {Reserved(leg, 0, true), Installed(leg, -1), step});
  EXPECT_OK(h_.client("r").failure);
  h_.Advance(absl::Milliseconds(200));
  EXPECT_THAT(h_.client("r").failure,
              testing::StatusIs(absl::StatusCode::kDeadlineExceeded,
                                ::testing::HasSubstr("not complete within its 2s: the beam search "
                                                     "had 1 of at most 10 tokens")));
  h_.ExpectEmpty();
}

// A likeliest token that cannot be is the node's fault: the leg is given up, and the client gets no
// token of it. One that is masked has no probability at all, which is no fault.
TEST(Candidates, ALegWithImpossibleOnesIsGivenUp) {
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<std::tuple<TokenId, float, bool>> candidates = {
      {999, -1.0F, true},   {0, -infinity, true}, {-1, -1.0F, false},
      {1000, -1.0F, false}, {1, nan, false},      {1, infinity, false}};
  for (const auto& [id, logprob, possible] : candidates) {
    SCOPED_TRACE(absl::StrCat("token ", id, " with ", logprob));
    CoreHarness h;
    h.JoinDecode(kD0, "d0");
    RequestInput input = CoreHarness::Input("r", 100, 10);
    input.sampling.Edit().logprobs = 2;
    ASSERT_OK(h.Submit(std::move(input)));
    const v1::Leg leg = h.NextRun(kD0).leg();
    v1::NodeEvent step = Generated(leg, {0});
    v1::GeneratedToken& token = *step.mutable_tokens()->mutable_steps(0)->mutable_tokens(0);
    token.add_top_logprobs()->set_token_id(500);
    token.add_top_logprobs()->set_token_id(id);
    token.mutable_top_logprobs(1)->set_logprob(logprob);
    h.Say(kD0, {Reserved(leg, 0, true), Installed(leg, -1), step});
    EXPECT_EQ(h.client("r").tokens.size(), possible ? 1u : 0u);
    if (!possible) h.ExpectAbort(kD0, leg.attempt());
  }
}

TEST_F(SequencesTest, FollowTheFirstToItsNode) {
  SubmitSequences(3);
  InstallLeader();
  const v1::StartDecode second = h_.NextRun(kD0);
  EXPECT_EQ(second.leg().sequence_index(), 1);
  EXPECT_TRUE(second.forks_follow()) << "it may come to lead";
  // What the node lacks of the prompt is computed there: at most a block.
  EXPECT_GE(second.local_prefill_tokens_max(), kBlockTokens);
  const v1::Leg third = ExpectRun(kD0, 2);
  for (const v1::Leg& leg : {second.leg(), third}) {
    h_.Say(kD0, {Reserved(leg, 96, true)});
    h_.Say(kD0, {Installed(leg, -1), Generated(leg, Indices(0, 10))});
  }
  EXPECT_TRUE(h_.Quiet(kP0) && h_.Quiet(kP1));
  h_.Say(kD0, {Generated(leader_, Indices(1, 10))});
  ExpectDoneWith("r#1", 10, false);
  ExpectDoneWith("r#2", 10, false);
  ExpectDoneWith("r", 10, true);
  h_.ExpectEmpty();
}

// The prompt's scores go to the client before any token of any sequence, however late they come.
TEST_F(SequencesTest, WaitForThePromptsScores) {
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.sequences = 2;
  input.prompt_logprobs = 0;
  ASSERT_OK(h_.Submit(std::move(input)));
  leader_ = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(leader_)});
  const v1::Leg prefill = h_.NextPrefill(kP0).leg();
  // The decode node's word overtakes all of the prefill node's.
  h_.Say(kD0, {Installed(leader_, 0), Generated(leader_, Indices(1, 9))});
  EXPECT_TRUE(h_.Quiet(kD0) && h_.client("r").tokens.empty());
  v1::NodeEvent scored;
  *scored.mutable_prompt_scored()->mutable_leg() = prefill;
  scored.mutable_prompt_scored()->set_first_index(1);
  for (int i = 1; i < 100; ++i) scored.mutable_prompt_scored()->add_tokens();
  h_.Say(kP0, {scored, Generated(prefill, {0}), PrefillFinished(prefill, 100, 0)});
  const v1::Leg second = ExpectRun(kD0, 1);
  EXPECT_EQ(h_.client("r").tokens.size(), 9u);
  h_.Say(kD0, {Generated(leader_, {9})});
  ExpectDoneWith("r", 10, false);
  h_.Say(kD0, {Reserved(second, 96, true)});
  h_.Say(kD0, {Installed(second, -1), Generated(second, Indices(0, 10))});
  ExpectDoneWith("r#1", 10, true);
  h_.ExpectEmpty();
}

// A client that leaves before the scores has no token, whatever its nodes computed.
TEST_F(SequencesTest, ReportNoTokensThatWaitedForThePromptsScores) {
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.prompt_logprobs = 0;
  ASSERT_OK(h_.Submit(std::move(input)));
  leader_ = h_.NextRun(kD0).leg();
  h_.Say(kD0, {Reserved(leader_)});
  h_.Say(kD0, {Installed(leader_, 0), Generated(leader_, Indices(1, 4))});
  h_.Finish("r", request::FinishReason::kAborted);
  ASSERT_TRUE(h_.client("r").done.has_value());
  EXPECT_EQ(h_.client("r").done->reason, request::FinishReason::kAborted);
  EXPECT_TRUE(h_.client("r").tokens.empty());
  EXPECT_EQ(h_.client("r").done->usage.output_tokens(), 0);
}

TEST_F(SequencesTest, WaitForAFirstTokenThatIsAlsoTheLast) {
  SubmitSequences(2, 1);
  InstallLeader();
  // The prompt lies there, and that is all the first was still wanted for.
  h_.ExpectAbort(kD0, leader_.attempt());
  const v1::Leg second = ExpectRun(kD0, 1);
  ExpectDoneWith("r", 1, false);
  h_.Say(kD0, {Reserved(second, 96, true)});
  h_.Say(kD0, {Installed(second, -1), Generated(second, {0})});
  ExpectDoneWith("r#1", 1, true);
  h_.ExpectEmpty();
}

TEST_F(SequencesTest, GoElsewhereTogetherWhenTheNodeIsLost) {
  SubmitSequences(2);
  InstallLeader();
  const v1::Leg second = ExpectRun(kD0, 1);
  h_.Say(kD0, {Reserved(second, 96, true)});
  h_.Say(kD0, {Installed(second, -1), Generated(second, {0, 1})});
  h_.Lose(kD0);
  // Again the first leads and the second waits.
  const v1::Leg again = ExpectRun(kD1, 0);
  EXPECT_TRUE(h_.Quiet(kD1)) << h_.commands()[kD1].front().ShortDebugString();
  h_.Say(kD1, {Reserved(again, 0, true)});
  EXPECT_TRUE(h_.Quiet(kD1));
  h_.Say(kD1, {Installed(again, -1), Generated(again, Indices(1, 10))});
  const v1::StartDecode last = h_.NextRun(kD1);
  EXPECT_EQ(last.leg().sequence_index(), 1);
  EXPECT_EQ(last.sequence().delivered_tokens(), 2);
  h_.Say(kD1, {Reserved(last.leg(), 96, true)});
  h_.Say(kD1, {Installed(last.leg(), -1), Generated(last.leg(), Indices(2, 10))});
  ExpectDoneWith("r", 10, false);
  ExpectDoneWith("r#1", 10, true);
  h_.ExpectEmpty();
}

TEST_F(SequencesTest, GoElsewhereWhenTheNodeIsFull) {
  SubmitSequences(2);
  InstallLeader();
  const v1::Leg second = ExpectRun(kD0, 1);
  h_.Say(kD0, {Refused(second, absl::StatusCode::kResourceExhausted)});
  const v1::Leg elsewhere = ExpectRun(kD1, 1);
  h_.Say(kD1, {Reserved(elsewhere, 0, true)});
  h_.Say(kD1, {Installed(elsewhere, -1), Generated(elsewhere, Indices(0, 10))});
  h_.Say(kD0, {Generated(leader_, Indices(1, 10))});
  ExpectDoneWith("r", 10, true);
  h_.ExpectEmpty();
}

// The node has the prompt of one that goes on beside the others, and not what it generated
// elsewhere.
TEST_F(SequencesTest, ThatGoOnBesideTheFirstExpectThePromptThereAlone) {
  SubmitSequences(2, 250);
  InstallLeader();
  const v1::Leg second = ExpectRun(kD0, 1);
  h_.Say(kD0, {Refused(second, absl::StatusCode::kResourceExhausted)});
  const v1::Leg elsewhere = ExpectRun(kD1, 1);
  h_.Say(kD1, {Reserved(elsewhere, 0, true)});
  h_.Say(kD1, {Installed(elsewhere, -1), Generated(elsewhere, Indices(0, 200))});
  h_.Lose(kD1);
  for (int i = 0; i < 20 && h_.Quiet(kD0); ++i) h_.Advance(absl::Milliseconds(100));
  const v1::Leg again = ExpectRun(kD0, 1);
  const Node& d0 = *h_.core().fleet().Find(NodeKey(kD0));
  EXPECT_EQ(d0.blocks_unconfirmed, d0.blocks_to_start(100 + 200) - 96 / kBlockTokens);
  h_.Say(kD0, {Reserved(again, 96)});
  EXPECT_EQ(d0.record.Trust(h_.now()), 1) << "it has what was expected";
  h_.Finish("r", request::FinishReason::kAborted);
  h_.ExpectEmpty();
}

// One that ran there has more than the prompt, if the node says so.
TEST_F(SequencesTest, ThatGoOnWhereTheyRanExpectTheirOwnBlocks) {
  SubmitSequences(2, 250);
  InstallLeader();
  const v1::Leg second = ExpectRun(kD0, 1);
  h_.Say(kD0, {Reserved(second, 96, true)});
  h_.Say(kD0, {Installed(second, -1), Generated(second, Indices(0, 200))});
  std::vector<TokenId> tokens = Tokens(100);
  for (int i = 0; i < 200; ++i) tokens.push_back(500 + i);
  v1::NodeEvent stored;
  stored.mutable_blocks_stored()->set_hashes(kv::PackHashes(HashesOf(tokens)));
  h_.Say(kD1, {Drains()});  // d0 alone is left
  h_.Say(kD0, {stored, LegFailed(second, false)});
  for (int i = 0; i < 40 && h_.Quiet(kD0); ++i) {
    for (const uint64_t node : {kD0, kD1, kP0, kP1}) h_.Say(node, {});
    h_.Advance(absl::Milliseconds(100));
  }
  ExpectRun(kD0, 1);
  const Node& d0 = *h_.core().fleet().Find(NodeKey(kD0));
  EXPECT_EQ(d0.blocks_unconfirmed, d0.blocks_to_start(300) - 299 / kBlockTokens);
  h_.Finish("r", request::FinishReason::kAborted);
}

TEST_F(SequencesTest, AreAbortedAsOneInEveryState) {
  for (const bool installed : {false, true}) {
    SubmitSequences(3);
    if (installed) InstallLeader();
    h_.Finish("r", request::FinishReason::kAborted);
    for (const std::string view : {"r", "r#1", "r#2"}) {
      EXPECT_EQ(h_.client(view).done->reason, request::FinishReason::kAborted);
      h_.client(view) = {};
    }
    h_.ExpectEmpty();
    h_.commands().clear();
  }
}

TEST_F(SequencesTest, EndAloneByAStopString) {
  SubmitSequences(2);
  InstallLeader();
  const v1::Leg second = ExpectRun(kD0, 1);
  h_.core().FinishSequence(RequestId("r"), 0, request::FinishReason::kStop, h_.now());
  h_.Say(kD0, {Reserved(second, 96, true)});
  h_.Say(kD0, {Installed(second, -1), Generated(second, Indices(0, 10))});
  EXPECT_EQ(h_.client("r").done->reason, request::FinishReason::kStop);
  ExpectDoneWith("r#1", 10, true);
  h_.ExpectEmpty();
}

TEST_F(SequencesTest, MeetTheirDeadlineAsOne) {
  RequestInput input = CoreHarness::Input("r", 100, 10);
  input.sequences = 2;
  input.answer_deadline = absl::Seconds(2);
  ASSERT_OK(h_.Submit(std::move(input)));
  InstallLeader();
  ExpectRun(kD0, 1);
  h_.Advance(absl::Milliseconds(1900));
  EXPECT_OK(h_.client("r").failure);
  h_.Advance(absl::Milliseconds(200));
  EXPECT_EQ(h_.client("r").failure.code(), absl::StatusCode::kDeadlineExceeded);
  h_.ExpectEmpty();
}

TEST_F(SequencesTest, ALowerPriorityNumberIsPlacedFirst) {
  CoreHarness h;
  for (const auto& [id, priority] :
       std::vector<std::pair<std::string, int>>{{"low", 5}, {"high", -5}, {"later", -5}}) {
    RequestInput input = CoreHarness::Input(id, 100, 10);
    input.priority = priority;
    ASSERT_OK(h.Submit(std::move(input)));
  }
  h.JoinDecode(kD0, "d0");
  EXPECT_EQ(h.NextRun(kD0).leg().request_id(), "high");
  EXPECT_EQ(h.NextRun(kD0).leg().request_id(), "later");
  const v1::StartDecode low = h.NextRun(kD0);
  EXPECT_EQ(low.leg().request_id(), "low");
  EXPECT_EQ(low.sequence().priority(), 5);
}

}  // namespace
}  // namespace tandem::router
