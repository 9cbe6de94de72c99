// Goal: what a router takes on is bounded in sequences and in bytes, however requests divide them;
// the sequences of a request share what is large; and no count of requests falls below zero.
#include <gmock/gmock.h>

#include "common/telemetry/log.h"
#include "router/core/beam_tree.h"
#include "tests/unit/router/core_harness.h"

namespace tandem::router {
namespace {

using ::testing::HasSubstr;
using testing::StatusIs;

class AdmissionTest : public ::testing::Test {
 protected:
  AdmissionTest() { SetLogLevel(LogLevel::kError); }
};

TEST_F(AdmissionTest, CountsSequences) {
  RouterOptions options;
  options.requests_max = 10;
  CoreHarness h(options);
  h.JoinDecode(1, "d0");
  const auto input = [](const std::string& id, int sequences) {
    RequestInput input = CoreHarness::Input(id, 50, 6);
    input.sequences = sequences;
    return input;
  };
  ASSERT_OK(h.Submit(input("a", 8)));
  EXPECT_THAT(h.Submit(input("b", 3)), StatusIs(absl::StatusCode::kResourceExhausted,
                                                HasSubstr("runs 8 sequences; 3 more")));
  RequestInput search = input("c", 1);
  search.beams = BeamParams{.width = 3};
  EXPECT_THAT(h.Submit(std::move(search)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("3 more")));
  ASSERT_OK(h.Submit(input("d", 2)));
  EXPECT_THAT(h.Submit(input("e", 1)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("runs 10")));
  h.Finish("a", request::FinishReason::kAborted);
  ASSERT_OK(h.Submit(input("f", 8)));
}

TEST_F(AdmissionTest, CountsBytesUntilTheRequestEnds) {
  const auto input = [](const std::string& id) {
    RequestInput input = CoreHarness::Input(id, 50, 6);
    request::GuidedParams guided;
    guided.kind = request::GuidedParams::Kind::kGrammar;
    guided.text = std::string(200'000, ' ');
    input.guided = std::move(guided);
    input.sequences = 100;
    return input;
  };
  // What the sequences share counts once.
  EXPECT_GT(input("a").HeldBytesMax(), 200'000 + 100 * kSequenceBytes);
  EXPECT_LT(input("a").HeldBytesMax(), 200'000 + 101 * (kSequenceBytes + 50 * 4));
  RouterOptions options;
  options.request_bytes_max = 2 * input("a").HeldBytesMax();
  CoreHarness h(options);
  h.JoinDecode(1, "d0");
  ASSERT_OK(h.Submit(input("a")));
  ASSERT_OK(h.Submit(input("b")));
  EXPECT_THAT(h.Submit(input("c")),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("would exceed its limit")));
  h.Finish("a", request::FinishReason::kAborted);
  ASSERT_OK(h.Submit(input("c")));
}

// Of one of width 64 with 1,000 tokens, a router's memory rises by some megabytes.
TEST_F(AdmissionTest, CountsWhatABeamSearchHolds) {
  RequestInput input = CoreHarness::Input("a", 100, 1000);
  input.sequences = 64;
  const int64_t sampled = input.HeldBytesMax();
  input.sequences = 1;
  input.beams = BeamParams{.width = 64};
  const int64_t plain = input.HeldBytesMax();
  // Running and complete beams with nothing in common, and a prompt for each.
  EXPECT_GE(plain, sampled + 2 * 64 * 1000 * BeamTree::kNodeBytes + int64_t{64} * 1100 * 4);
  EXPECT_LT(plain, 2 * sampled + 3 * 64 * 1000 * BeamTree::kNodeBytes);
  input.sampling.Edit().logprobs = 5;
  EXPECT_GE(input.HeldBytesMax(), plain + 2 * 64 * 1000 * 5 * BeamTree::kTopBytes);
  input.stop.Edit().max_tokens = 200;
  RouterOptions options;
  options.request_bytes_max = 2 * input.HeldBytesMax() - 1;
  CoreHarness h(options);
  h.JoinDecode(1, "d0");
  ASSERT_OK(h.Submit(RequestInput(input)));
  input.id = RequestId("b");
  EXPECT_THAT(h.Submit(RequestInput(input)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("would exceed its limit")));
}

// A search has one sequence at first, and as many as it is wide after its first step.
TEST_F(AdmissionTest, CountsABeamSearchByItsWidth) {
  RouterOptions options;
  options.requests_max = 5;
  CoreHarness h(options);
  h.JoinDecode(1, "d0");
  RequestInput search = CoreHarness::Input("search", 50, 6);
  search.beams = BeamParams{.width = 4};
  const auto refused = StatusIs(absl::StatusCode::kResourceExhausted,
                                HasSubstr("runs 5 sequences; 1 more would exceed"));
  // Both ended, they count no more.
  for (const std::string round : {"a", "b"}) {
    search.id = RequestId(round + "-search");
    ASSERT_OK(h.Submit(RequestInput(search)));
    ASSERT_OK(h.Submit(CoreHarness::Input(round + "-one", 50, 6)));
    EXPECT_THAT(h.Submit(CoreHarness::Input(round + "-two", 50, 6)), refused);
    h.Finish(round + "-search", request::FinishReason::kAborted);
    h.Finish(round + "-one", request::FinishReason::kAborted);
  }
}

// Lists that a client chooses: a bad word of 64 tokens has 256 bytes, a stop string at most 1,024.
TEST_F(AdmissionTest, CountsTheListsOfParameters) {
  RequestInput input = CoreHarness::Input("a", 50, 6);
  input.sequences = 100;
  const int64_t plain = input.HeldBytesMax();
  input.sampling.Edit().bad_words.assign(1024, std::vector<TokenId>(64, 7));
  const int64_t with_words = input.HeldBytesMax();
  EXPECT_GE(with_words, plain + 1024 * 256);
  EXPECT_LT(with_words, plain + 2 * 1024 * 256) << "the sequences share them";
  input.stop.Edit().stop.assign(64, std::string(1024, 'x'));
  const int64_t with_stops = input.HeldBytesMax();
  EXPECT_GE(with_stops, with_words + 100 * 64 * 1024) << "each may copy them";
  // They share what finds them: 16 bytes for each byte (StopMatcher).
  EXPECT_LT(with_stops, with_words + (100 + 22) * 64 * 1024);
}

// A front end keeps those of a prompt, and an answer of n choices has them n times.
TEST_F(AdmissionTest, CountsTheLogProbabilitiesOfPrompts) {
  RequestInput input = CoreHarness::Input("a", 300, 1);
  const int64_t plain = input.HeldBytesMax();
  input.prompt_logprobs = 0;
  EXPECT_EQ(input.HeldBytesMax(), plain + 300 * kPromptLogprobBytes);
  input.prompt_logprobs = 20;
  EXPECT_EQ(input.HeldBytesMax(), plain + 300 * 21 * kPromptLogprobBytes);
  input.sequences = 128;
  EXPECT_GE(input.HeldBytesMax(), 300 * 21 * 128 * kPromptLogprobBytes);
  RouterOptions options;
  options.request_bytes_max = input.HeldBytesMax();
  CoreHarness h(options);
  h.JoinDecode(1, "d0");
  ASSERT_OK(h.Submit(RequestInput(input)));
  EXPECT_THAT(h.Submit(CoreHarness::Input("b", 50, 6)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("would exceed its limit")));
}

// A whole answer keeps them until it is over. At the bound, and one byte beyond it.
TEST_F(AdmissionTest, CountsTheLogProbabilitiesOfAnswers) {
  RequestInput input = CoreHarness::Input("a", 300, 100);
  const int64_t plain = input.HeldBytesMax();
  input.sampling.Edit().logprobs = 20;
  EXPECT_EQ(input.HeldBytesMax(), plain) << "the router's own";
  input.answer_logprobs = 20;
  EXPECT_EQ(input.HeldBytesMax(), plain + 100 * (kStreamedTokenBytes + 20 * kStreamedLogprobBytes));
  input.keeps_answers = true;
  EXPECT_EQ(input.HeldBytesMax(), plain + 100 * 21 * kAnswerLogprobBytes);
  input.sequences = 128;
  EXPECT_GE(input.HeldBytesMax(), 128 * 100 * 21 * kAnswerLogprobBytes);
  RouterOptions options;
  options.request_bytes_max = input.HeldBytesMax();
  CoreHarness h(options);
  h.JoinDecode(1, "d0");
  ASSERT_OK(h.Submit(RequestInput(input)));
  EXPECT_THAT(h.Submit(CoreHarness::Input("b", 50, 6)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("would exceed its limit")));
  options.request_bytes_max = input.HeldBytesMax() - 1;
  CoreHarness smaller(options);
  smaller.JoinDecode(1, "d0");
  EXPECT_THAT(smaller.Submit(RequestInput(input)),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr(absl::StrCat("may come to hold ", input.HeldBytesMax(), " bytes, ",
                                              input.LogprobBytesMax(), " of them"))));
}

// What a front end keeps to repeat the request in the answer: at the bound, and a byte beyond it.
TEST_F(AdmissionTest, CountsWhatTheFrontEndKeepsOfTheRequest) {
  RequestInput input = CoreHarness::Input("a", 50, 6);
  input.sequences = 3;
  RouterOptions options;
  options.request_bytes_max = input.HeldBytesMax() + 10'000'000;
  CoreHarness h(options);
  h.JoinDecode(1, "d0");
  input.front_end_bytes = 10'000'001;
  EXPECT_THAT(h.Submit(RequestInput(input)), StatusIs(absl::StatusCode::kInvalidArgument,
                                                      HasSubstr("the request may come to hold")));
  input.front_end_bytes = 10'000'000;
  ASSERT_OK(h.Submit(RequestInput(input)));
  EXPECT_THAT(h.Submit(CoreHarness::Input("b", 1, 1)),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("would exceed its limit")));
}

// A stream holds what its client has not read, however long it gets.
TEST_F(AdmissionTest, CountsTheUnreadTokensOfAStream) {
  RequestInput input = CoreHarness::Input("a", 300, 16384);
  input.answer_logprobs = 0;
  EXPECT_EQ(input.LogprobBytesMax(), 16384 * kStreamedTokenBytes);
  input.stop.Edit().max_tokens = 1 << 20;
  EXPECT_EQ(input.LogprobBytesMax(), 16384 * kStreamedTokenBytes);
}

TEST_F(AdmissionTest, CopiesOfARequestShareWhatIsLarge) {
  const RequestInput input = CoreHarness::Input("a", 5000, 6);
  const RequestInput copy = input;
  EXPECT_TRUE(copy.prompt.SharesWith(input.prompt));
  EXPECT_TRUE(copy.guided.SharesWith(input.guided));
  EXPECT_TRUE(copy.sampling.SharesWith(input.sampling));
  EXPECT_TRUE(copy.stop.SharesWith(input.stop));
}

// A request of many sequences is one request, running as soon as one of them is placed. Each
// request begins with one sequence, so two run on a node of two slots.
TEST_F(AdmissionTest, EachRequestRunsOrWaitsWhateverItsSequences) {
  CoreHarness h;
  v1::Registration registration = TestRegistration("d0", v1::NODE_ROLE_DECODE);
  registration.set_max_sequences(2);
  ASSERT_OK(h.Join(1, registration));
  for (int i = 0; i < 4; ++i) {
    RequestInput input = CoreHarness::Input(absl::StrCat("r", i), 20, 6);
    input.sequences = 128;
    ASSERT_OK(h.Submit(std::move(input)));
    EXPECT_EQ(h.status().requests_running(), std::min(i + 1, 2));
    EXPECT_EQ(h.status().requests_queued(), std::max(i - 1, 0));
  }
  for (int i = 0; i < 4; ++i) {
    h.Finish(absl::StrCat("r", i), request::FinishReason::kAborted);
    EXPECT_EQ(h.status().requests_running(), std::min(3 - i, 2));
    EXPECT_EQ(h.status().requests_queued(), std::max(1 - i, 0));
  }
  EXPECT_EQ(h.status().requests_queued(), 0);
}

}  // namespace
}  // namespace tandem::router
