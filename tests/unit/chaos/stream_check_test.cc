// Goal: any lost, repeated, changed or added token, text, log-probability or end of an answer is a
// difference, and what a client collects over several calls is what one call would have given.
#include "cli/chaos/stream_check.h"

#include "cli/chaos/workload.h"
#include "tests/testing/status_matchers.h"

namespace tandem::cli {
namespace {

using ::testing::HasSubstr;

v1::GenerateResponse Delta(int first, const std::string& text, int tokens, int sequence = 0) {
  v1::GenerateResponse part;
  part.mutable_delta()->set_sequence_index(sequence);
  part.mutable_delta()->set_text(text);
  for (int i = first; i < first + tokens; ++i) {
    v1::GeneratedToken& token = *part.mutable_delta()->add_tokens();
    token.set_index(i);
    token.set_token_id(100 + i);
  }
  return part;
}
v1::GenerateResponse End(int sequence = 0) {
  v1::GenerateResponse part;
  part.mutable_finished()->set_sequence_index(sequence);
  part.mutable_finished()->set_reason(v1::FINISH_REASON_LENGTH);
  return part;
}

TEST(AnswerCollector, GoesOnWhereACallBrokeOff) {
  AnswerCollector whole(1), broken(1);
  EXPECT_EQ(whole.Resume(), std::vector<int32_t>({0}));
  for (const auto& part : {Delta(0, "ab", 2), Delta(2, "c", 1), Delta(3, "d", 0), End()})
    ASSERT_OK(whole.OnPart(part));
  EXPECT_TRUE(whole.finished());
  EXPECT_EQ(broken.Resume(), std::vector<int32_t>({0}));
  ASSERT_OK(broken.OnPart(Delta(0, "ab", 2)));
  EXPECT_EQ(broken.Resume(), std::vector<int32_t>({2}));
  ASSERT_OK(broken.OnPart(Delta(2, "c", 1)));
  ASSERT_OK(broken.OnPart(Delta(3, "d", 0)));
  EXPECT_FALSE(broken.finished());
  EXPECT_EQ(broken.Resume(), std::vector<int32_t>({3}));
  ASSERT_OK(broken.OnPart(Delta(3, "d", 0)));
  ASSERT_OK(broken.OnPart(End()));
  EXPECT_EQ(Difference(whole.answers(), broken.answers(), true), "");
  EXPECT_EQ(broken.answers()[0].text, "abcd");
}

TEST(AnswerCollector, SeveralAnswersGoOnEachAtItsOwnToken) {
  AnswerCollector collector(2);
  ASSERT_OK(collector.OnPart(Delta(0, "ab", 2, 1)));
  ASSERT_OK(collector.OnPart(Delta(2, "c", 0, 1)));
  ASSERT_OK(collector.OnPart(End(1)));
  EXPECT_EQ(collector.Resume(), std::vector<int32_t>({0, 2}));
  EXPECT_EQ(collector.answers()[1].text, "ab") << "what the end brought comes again";
  ASSERT_OK(collector.OnPart(Delta(2, "c", 0, 1)));
  ASSERT_OK(collector.OnPart(Delta(0, "d", 1, 0)));
  ASSERT_OK(collector.OnPart(End(1)));
  EXPECT_FALSE(collector.finished());
  ASSERT_OK(collector.OnPart(End(0)));
  EXPECT_TRUE(collector.finished());
  EXPECT_EQ(collector.answers()[1].text, "abc");
}

TEST(AnswerCollector, RefusesGapsRepeatsAndTokensAfterTheEnd) {
  for (const int second : {0, 1, 3, 4}) {
    AnswerCollector collector(1);
    ASSERT_OK(collector.OnPart(Delta(0, "ab", 2)));
    EXPECT_EQ(collector.OnPart(Delta(second, "c", 1)).code(), absl::StatusCode::kDataLoss);
  }
  AnswerCollector collector(1);
  ASSERT_OK(collector.OnPart(End()));
  EXPECT_EQ(collector.OnPart(Delta(0, "a", 1)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(collector.OnPart(End()).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(collector.OnPart(End(1)).code(), absl::StatusCode::kDataLoss);
}

TEST(Difference, IsFoundInEveryPart) {
  const SequenceAnswer expected = {.text = "abc",
                                   .tokens = {1, 2, 3},
                                   .logprobs = {0, 0, 0},
                                   .reason = v1::FINISH_REASON_STOP,
                                   .stop_string = "d"};
  const auto differs = [&](auto change, bool whole) {
    SequenceAnswer got = expected;
    change(got);
    return Difference({expected}, {got}, whole);
  };
  EXPECT_EQ(differs([](SequenceAnswer&) {}, true), "");
  EXPECT_THAT(differs([](SequenceAnswer& a) { a.tokens[1] = 9; }, false), HasSubstr("token 1"));
  EXPECT_THAT(differs([](SequenceAnswer& a) { a.logprobs[2] = -1; }, false), HasSubstr("token 2"));
  EXPECT_THAT(differs([](SequenceAnswer& a) { a.text = "abd"; }, false), HasSubstr("abd"));
  EXPECT_THAT(differs([](SequenceAnswer& a) { a.reason = v1::FINISH_REASON_LENGTH; }, true),
              HasSubstr("LENGTH"));
  EXPECT_THAT(differs([](SequenceAnswer& a) { a.stop_string = "e"; }, true), HasSubstr("\"e\""));
  const auto shorter = [](SequenceAnswer& a) {
    a.tokens.pop_back();
    a.logprobs.pop_back();
    a.text = "ab";
  };
  EXPECT_EQ(differs(shorter, false), "") << "a client that left";
  EXPECT_NE(differs(shorter, true), "");
  const auto longer = [](SequenceAnswer& a) {
    a.tokens.push_back(4);
    a.logprobs.push_back(0);
  };
  EXPECT_THAT(differs(longer, false), HasSubstr("after the end"));
  EXPECT_NE(Difference({expected, expected}, {expected}, true), "");
}

TEST(Workload, FollowsFromTheSeedAndHasEverything) {
  const auto requests = DrawWorkload({.seed = 5, .requests = 300});
  const auto again = DrawWorkload({.seed = 5, .requests = 300});
  int sampled = 0, stops = 0, logprobs = 0, several = 0;
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(requests[i].SerializeAsString(), again[i].SerializeAsString());
    EXPECT_GE(requests[i].tokens().ids_size(), 1);
    EXPECT_LE(requests[i].tokens().ids_size(), 500);
    sampled += requests[i].sampling().temperature() > 0;
    stops += requests[i].stop().stop_size() > 0;
    logprobs += requests[i].sampling().has_logprobs();
    several += requests[i].n() > 1;
  }
  for (const int count : {sampled, stops, logprobs, several}) EXPECT_GT(count, 10);
  EXPECT_NE(DrawWorkload({.seed = 6, .requests = 1})[0].SerializeAsString(),
            requests[0].SerializeAsString());
}

TEST(Workload, TheHashEnginesAnswerIsKnown) {
  v1::GenerateRequest request = DrawWorkload({.seed = 9, .requests = 1})[0];
  request.mutable_stop()->clear_stop();
  request.mutable_stop()->set_max_tokens(2);
  SequenceAnswer wrong = {.text = "  ", .tokens = {32, 32}, .logprobs = {0, 0}};
  wrong.reason = v1::FINISH_REASON_LENGTH;
  EXPECT_THAT(DifferenceFromHashEngine(request, {wrong}), HasSubstr("expected"));
  wrong = {};
  wrong.reason = v1::FINISH_REASON_LENGTH;
  EXPECT_THAT(DifferenceFromHashEngine(request, {wrong}), HasSubstr("0 tokens of 2"));
}

}  // namespace
}  // namespace tandem::cli
