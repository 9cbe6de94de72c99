// An engine's answer as tests of invariance compare it. Thread safety: a value.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "gtest/gtest.h"

namespace tandem::engine {

// What an engine sampled for one sequence.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;

  void Add(const SampledToken& sampled) {
    tokens.push_back(sampled.token);
    logprobs.push_back(sampled.logprob);
    for (const TopLogprob& top : sampled.top_logprobs) logprobs.push_back(top.logprob);
  }
};

// Tokens, and logprobs to the bit.
inline void ExpectSame(const Answer& actual, const Answer& expected, const std::string& what) {
  EXPECT_EQ(actual.tokens, expected.tokens) << what;
  ASSERT_EQ(actual.logprobs.size(), expected.logprobs.size()) << what;
  EXPECT_EQ(std::memcmp(actual.logprobs.data(), expected.logprobs.data(),
                        actual.logprobs.size() * sizeof(float)),
            0)
      << what << ": logprob bits differ";
}

}  // namespace tandem::engine
