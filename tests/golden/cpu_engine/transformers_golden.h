// Reads the goldens of real models that make_real_goldens.py wrote, for the tests of every engine.
// Thread safety: pure functions.
#pragma once

#include <cmath>
#include <iostream>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {

// Top logprobs within `tolerance`, and greedy tokens for as long as the reference's two likeliest
// are further apart than twice that. Prints the mean error of the logprobs.
inline void ExpectGoldens(Engine* engine, const nlohmann::json& goldens, double tolerance) {
  double errors = 0, count = 0;
  for (const auto& golden : goldens) {
    const auto ids = golden["ids"].get<std::vector<TokenId>>();
    DrivenSequence sequence;
    sequence.sampling.temperature = 0;
    sequence.sampling.logprobs = 5;
    sequence.blocks = TakeBlocks(engine->spec(), 0, static_cast<int64_t>(ids.size()) + 32);
    SampledToken sampled;
    for (const auto& top : golden["top"]) {
      sequence.tokens.assign(ids.begin(), ids.begin() + top["position"].get<int64_t>() + 1);
      ASSERT_OK_AND_ASSIGN(sampled, ComputeRest(engine, &sequence, 256));
      const auto expected = top["logprobs"].get<std::vector<double>>();
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(sampled.top_logprobs[i].logprob, expected[i], tolerance);
        errors += std::abs(sampled.top_logprobs[i].logprob - expected[i]);
        count += 1;
      }
    }
    const auto greedy = golden["greedy"].get<std::vector<TokenId>>();
    const auto margins = golden["margins"].get<std::vector<double>>();
    for (size_t i = 0; i < greedy.size() && margins[i] > 2 * tolerance; ++i) {
      ASSERT_EQ(sampled.token, greedy[i]) << "token " << i << " after " << ids.size();
      sequence.tokens.push_back(sampled.token);
      ASSERT_OK_AND_ASSIGN(sampled, ComputeRest(engine, &sequence, 256));
    }
  }
  std::cout << "mean error of top logprobs " << errors / count << "\n";
}

}  // namespace tandem::engine
