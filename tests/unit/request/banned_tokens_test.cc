// Goal: BannedTokens is the definition's set, ascending and without repeats, up to the bounds of
// what a request may list: the whole vocabulary as stop tokens, and every bad word in whole.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <set>

#include "common/request/bad_words.h"
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
    SortBadWords(params.bad_words);
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
  SortBadWords(params.bad_words);
  StopParams stop;
  stop.min_tokens = 1000;
  stop.stop_token_ids.resize(kVocabulary);
  std::iota(stop.stop_token_ids.begin(), stop.stop_token_ids.end(), 0);
  EXPECT_EQ(BannedTokens(params, &stop, {0, 1, 2}, output), stop.stop_token_ids);
  stop.min_tokens = 0;
  EXPECT_EQ(BannedTokens(params, &stop, {0, 1, 2}, output).size(), kBadWordsMax);
}

// Two binary searches for each token of the longest word, and one step for each word found. To
// compare each word with the answer takes 64,512 steps at the bounds.
TEST(BannedTokens, BadWordsTakeFewStepsAtTheBounds) {
  constexpr size_t kStepsMax = (kBadWordTokensMax - 1) * 2 * 11 + kBadWordsMax;
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  std::mt19937_64 random(seed);
  // All alike but for their last tokens; tokens of two kinds; any tokens.
  for (const uint64_t kinds : {uint64_t{1}, uint64_t{2}, uint64_t{50'000}}) {
    std::vector<std::vector<TokenId>> words(kBadWordsMax);
    for (std::vector<TokenId>& word : words) {
      word.resize(kinds == 2 ? 1 + random() % kBadWordTokensMax : kBadWordTokensMax);
      for (TokenId& token : word) token = static_cast<TokenId>(random() % kinds);
    }
    SortBadWords(words);
    size_t most = 0, found = 0;
    for (int run = 0; run < 2000; ++run) {
      std::vector<TokenId> output = words[random() % kBadWordsMax];
      output.pop_back();
      for (uint64_t i = random() % 3; i > 0; --i)
        output.push_back(static_cast<TokenId>(random() % kinds));
      std::vector<TokenId> banned;
      most = std::max(most, FindBannedTokens(words, output, banned));
      found = std::max(found, banned.size());
    }
    std::printf("%zu steps at most, %zu words found\n", most, found);
    EXPECT_LE(most, kStepsMax);
    EXPECT_GT(found, 0u);
  }
}

}  // namespace
}  // namespace tandem::request
