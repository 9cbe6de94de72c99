// Goal: a chaos run of nodes that lend asks for as many sequences beyond a node's pool as it is
// told to, by their prompts and by their answers, none of them beyond 1.5 pools; without lending
// there are none.
#include "cli/chaos/workload.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <random>

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

}  // namespace
}  // namespace tandem::cli
