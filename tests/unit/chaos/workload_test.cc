// Goal: a chaos run of nodes that lend asks for as many sequences beyond a node's pool as it is
// told to, by their prompts and by their answers, none of them beyond 1.5 pools; without lending
// there are none. A recorded answer is right only if it ends where its request says.
#include "cli/chaos/workload.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

#include "common/engine/hash/hash_engine.h"
#include "common/rpc/convert.h"

namespace tandem::cli {
namespace {

constexpr int kPoolTokens = 768;

struct Counts {
  int by_prompt = 0, by_answer = 0, most = 0;
};

Counts Count(double share, uint64_t seed) {
  Counts counts;
  for (const v1::GenerateRequest& request : DrawWorkload({.seed = seed,
                                            .requests = 400,
                                            .prompt_tokens_max = 500,
                                            .output_tokens_max = 120,
                                            .beyond_pool_share = share,
                                            .pool_tokens = kPoolTokens})) {
    const int prompt = request.tokens().ids_size(), answer = request.stop().max_tokens();
    EXPECT_GE(prompt, 1);
    EXPECT_GE(answer, 1);
    counts.most = std::max(counts.most, prompt + answer);
    if (prompt + answer <= kPoolTokens) continue;
    EXPECT_EQ(request.stop().stop_size(), 0) << "it may end before it outgrows the pool";
    ++(prompt > kPoolTokens ? counts.by_prompt : counts.by_answer);
  }
  return counts;
}

TEST(ChaosWorkload, AsksForSequencesBeyondAPool) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  const Counts counts = Count(0.4, seed);
  // 400 draws: 80 of each kind are due, give or take 5 standard deviations.
  EXPECT_NEAR(counts.by_prompt, 80, 40);
  EXPECT_NEAR(counts.by_answer, 80, 40);
  EXPECT_LE(counts.most, kPoolTokens * 3 / 2);
}

TEST(ChaosWorkload, AsksForNoneOfThemWithoutLending) {
  const uint64_t seed = std::random_device()();
  SCOPED_TRACE(seed);
  const Counts counts = Count(0, seed);
  EXPECT_EQ(counts.by_prompt + counts.by_answer, 0);
  EXPECT_LE(counts.most, 620);
}

constexpr int kAnswerTokens = 12, kStopBegins = 6, kStopEnds = 8;

v1::GenerateRequest StopRequest() {
  v1::GenerateRequest request;
  for (int i = 0; i < 5; ++i) request.mutable_tokens()->add_ids(40 + i);
  request.mutable_stop()->set_max_tokens(kAnswerTokens);
  return request;
}
// The first `count` tokens of the answer.
SequenceAnswer HashAnswer(const v1::GenerateRequest& request, int count) {
  std::vector<TokenId> tokens(request.tokens().ids().begin(), request.tokens().ids().end());
  SequenceAnswer answer;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(
        engine::HashEngineNextToken({}, tokens, rpc::FromWire(request.sampling()), /*index=*/0));
    answer.tokens.push_back(tokens.back());
    answer.text.push_back(static_cast<char>(tokens.back()));
  }
  answer.reason = v1::FINISH_REASON_LENGTH;
  return answer;
}

TEST(ChaosWorkload, AnAnswerMayStopOnlyWhereItsStopStringEnds) {
  v1::GenerateRequest request = StopRequest();
  const std::string text = HashAnswer(request, kAnswerTokens).text;
  const std::string stop = text.substr(kStopBegins, kStopEnds - kStopBegins);
  ASSERT_EQ(text.find(stop), size_t{kStopBegins});
  EXPECT_EQ(DifferenceFromHashEngine(request, {HashAnswer(request, kAnswerTokens)}), "");
  EXPECT_THAT(DifferenceFromHashEngine(request, {HashAnswer(request, kStopEnds)}),
              ::testing::HasSubstr("ended after 8 tokens of 12"));
  request.mutable_stop()->add_stop(stop);
  const auto stopped_after = [&](int count, const std::string& stop_string) {
    SequenceAnswer answer = HashAnswer(request, count);
    answer.reason = v1::FINISH_REASON_STOP;
    answer.stop_string = stop_string;
    answer.text = answer.text.substr(0, answer.text.find(stop));
    return DifferenceFromHashEngine(request, {answer});
  };
  EXPECT_EQ(stopped_after(kStopEnds, stop), "");
  EXPECT_THAT(stopped_after(3, stop), ::testing::HasSubstr("stopped after 3 tokens"));
  EXPECT_THAT(stopped_after(0, stop), ::testing::HasSubstr("stopped after 0 tokens"));
  EXPECT_THAT(stopped_after(kStopEnds + 1, stop), ::testing::HasSubstr("stopped after 9 tokens"));
  EXPECT_THAT(stopped_after(kStopEnds, ""), ::testing::HasSubstr("stop string \"\""));
  EXPECT_THAT(stopped_after(kStopEnds, "other"), ::testing::HasSubstr("stop string \"other\""));
}

}  // namespace
}  // namespace tandem::cli
