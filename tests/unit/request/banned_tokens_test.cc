// Goal: BannedTokens is the definition's set, ascending and without repeats, up to the bounds of
// what a request may list: the whole vocabulary as stop tokens, and every bad word in whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>

#include "common/request/sampling_params.h"

namespace tandem::request {
namespace {

// By the definition, one token after the other.
std::vector<TokenId> Naive(const SamplingParams& params, const StopParams& stop,
                           const std::vector<TokenId>& eos, const std::vector<TokenId>& output) {
  std::set<TokenId> banned;
  for (const std::vector<TokenId>& word : params.bad_words) {
    bool follows = word.size() <= output.size() + 1;
    for (size_t i = 0; follows && i + 1 < word.size(); ++i)
      follows = word[i] == output[output.size() - word.size() + 1 + i];
    if (follows) banned.insert(word.back());
  }
  if (static_cast<int64_t>(output.size()) < stop.min_tokens) {
    banned.insert(stop.stop_token_ids.begin(), stop.stop_token_ids.end());
    if (!stop.ignore_eos) banned.insert(eos.begin(), eos.end());
  }
  return {banned.begin(), banned.end()};
}

TEST(BannedTokens, AreThoseOfTheDefinition) {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  const auto token = [&random] { return static_cast<TokenId>(random() % 5); };
  for (int run = 0; run < 2000; ++run) {
    SamplingParams params;
    for (uint64_t words = random() % 8; words > 0; --words) {
      params.bad_words.emplace_back(1 + random() % 3);
      for (TokenId& t : params.bad_words.back()) t = token();
    }
    StopParams stop;
    stop.min_tokens = static_cast<int32_t>(random() % 6);
    stop.ignore_eos = random() % 2 == 0;
    for (TokenId t = 0; t < 5; ++t)
      if (random() % 2 == 0) stop.stop_token_ids.push_back(t);
    std::vector<TokenId> eos, output;
    for (uint64_t i = random() % 3; i > 0; --i) eos.push_back(token());
    for (uint64_t i = random() % 8; i > 0; --i) output.push_back(token());
    EXPECT_EQ(BannedTokens(params, &stop, eos, output), Naive(params, stop, eos, output));
  }
}

TEST(BannedTokens, AtTheBoundsOfEveryList) {
  constexpr TokenId kVocabulary = 262'144;
  SamplingParams params;
  const std::vector<TokenId> output(100, 1);
  for (size_t i = 0; i < kBadWordsMax; ++i) {
    params.bad_words.emplace_back(kBadWordTokensMax, 1);  // each compared to its last token
    params.bad_words.back().back() = static_cast<TokenId>(i);
  }
  StopParams stop;
  stop.min_tokens = 1000;
  stop.stop_token_ids.resize(kVocabulary);
  std::iota(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), 0);
  EXPECT_EQ(BannedTokens(params, &stop, {0, 1, 2}, output), stop.stop_token_ids);
  stop.min_tokens = 0;
  EXPECT_EQ(BannedTokens(params, &stop, {0, 1, 2}, output).size(), kBadWordsMax);
}

}  // namespace
}  // namespace tandem::request
