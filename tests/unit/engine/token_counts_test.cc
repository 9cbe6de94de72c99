// Goal: counts that a sequence keeps equal a recount of its whole history at every token, whatever
// pieces they grew in, and the sampler takes them as they are.
#include "common/engine/token_counts.h"

#include <cstdlib>
#include <iostream>
#include <map>
#include <random>

#include "common/engine/token_sampler.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::engine {
namespace {

constexpr int32_t kVocab = 300;

struct Expected {
  int32_t prompt = 0, output = 0;
};

void ExpectCountsOf(absl::Span<const TokenId> tokens, int64_t prompt_tokens,
                    absl::Span<const kernels::TokenCount> counts) {
  std::map<TokenId, Expected> expected;
  for (int64_t i = 0; i < std::ssize(tokens); ++i) {
    const TokenId token = tokens[static_cast<size_t>(i)];
    if (token < 0 || token >= kVocab) continue;
    ++(i < prompt_tokens ? expected[token].prompt : expected[token].output);
  }
  ASSERT_EQ(counts.size(), expected.size());
  size_t place = 0;
  for (const auto& [token, count] : expected) {
    ASSERT_EQ(counts[place].token, token);
    ASSERT_EQ(counts[place].prompt_count, count.prompt) << token;
    ASSERT_EQ(counts[place].output_count, count.output) << token;
    ++place;
  }
}

TEST(TokenCounts, EqualARecountOfRandomHistories) {
  const char* repeat = std::getenv("TANDEM_TEST_SEED");
  const uint64_t seed =
      repeat != nullptr ? std::strtoull(repeat, nullptr, 10) : std::random_device()();
  std::cout << "seed " << seed << " (repeat with TANDEM_TEST_SEED)\n";
  std::mt19937_64 random(seed);
  for (int history = 0; history < 300 && !::testing::Test::HasFatalFailure(); ++history) {
    const int64_t prompt_tokens = static_cast<int64_t>(random() % 60);
    const uint64_t distinct = 1 + random() % (kVocab + 20);
    const uint64_t piece_max = 1 + random() % 40;
    std::vector<TokenId> tokens;
    TokenCounts counts;
    while (tokens.size() < 200) {
      const uint64_t piece = 1 + random() % piece_max;
      for (uint64_t i = 0; i < piece; ++i)
        tokens.push_back(static_cast<TokenId>(random() % distinct) - 3);
      EXPECT_EQ(counts.Extend(tokens, prompt_tokens, kVocab), static_cast<int64_t>(piece));
      ExpectCountsOf(tokens, prompt_tokens, counts.counts());
    }
    EXPECT_EQ(counts.Extend(tokens, prompt_tokens, kVocab), 0);
  }
}

TEST(TokenCounts, TheSamplerTakesASlicesOwn) {
  const std::vector<TokenId> tokens = {7, 3, 7, 9, 3};
  request::SamplingParams sampling;
  sampling.frequency_penalty = 0.5;
  TokenCounts counts;
  counts.Extend(tokens, 3, kVocab);
  SequenceSlice slice;
  slice.tokens = tokens;
  slice.prompt_tokens = 3;
  slice.sampling = &sampling;
  const SamplingInputs counted = InputsOf(slice, kVocab);
  slice.counts = &counts;
  const SamplingInputs taken = InputsOf(slice, kVocab);
  EXPECT_EQ(taken.args.counts, counts.counts().data()) << "no copy, and no recount";
  ASSERT_EQ(taken.args.num_counts, counted.args.num_counts);
  ExpectCountsOf(tokens, 3, absl::MakeConstSpan(counted.args.counts, 3));
  ExpectCountsOf(tokens, 3, absl::MakeConstSpan(taken.args.counts, 3));
}

}  // namespace
}  // namespace tandem::engine
