// Goal: bias, bans, penalties, temperature and filters leave the tokens that transformers' logits
// processors leave, with their probabilities: the greedy choice is theirs, and 100,000 draws of
// different seeds pass a chi-square test against theirs, for each set of processors and backend.
#include <algorithm>
#include <cmath>
#include <map>

#include "common/engine/token_sampler.h"
#include "common/request/bad_words.h"
#include "nlohmann/json.hpp"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {
namespace {

constexpr int kDraws = 100000, kDrawsOfReference = 10000;  // the oracle is slow
// Expected counts below this are too few for the test's distribution: such tokens share a cell.
constexpr double kCellMin = 10;

struct Case {
  request::SamplingParams sampling;
  request::StopParams stop;
};

Case CaseOf(const nlohmann::json& params) {
  Case c;
  c.sampling.temperature = params.value("temperature", 1.0);
  c.sampling.repetition_penalty = params.value("repetition_penalty", 1.0);
  c.sampling.top_k = params.value("top_k", 0);
  c.sampling.top_p = params.value("top_p", 1.0);
  c.sampling.min_p = params.value("min_p", 0.0);
  c.stop.max_tokens = 100;
  c.stop.min_tokens = params.value("min_tokens", 0);
  if (params.contains("stop_token_ids"))
    c.stop.stop_token_ids = params["stop_token_ids"].get<std::vector<TokenId>>();
  if (params.contains("allowed_token_ids"))
    c.sampling.allowed_token_ids = params["allowed_token_ids"].get<std::vector<TokenId>>();
  if (params.contains("bad_words"))
    c.sampling.bad_words = params["bad_words"].get<std::vector<std::vector<TokenId>>>();
  request::SortBadWords(c.sampling.bad_words);
  if (params.contains("logit_bias")) {
    for (const auto& [token, bias] : params["logit_bias"].items())
      c.sampling.logit_bias.emplace_back(std::stoi(token), bias.get<float>());
  }
  std::sort(c.sampling.logit_bias.begin(), c.sampling.logit_bias.end());
  return c;
}

// The value that chi-square with `freedom` degrees exceeds once in 100,000 (Wilson and Hilferty's
// approximation).
double ChiSquareLimit(int freedom) {
  const double a = 2.0 / (9.0 * freedom), z = 4.265;
  return freedom * std::pow(1 - a + z * std::sqrt(a), 3);
}

class Processors : public ::testing::TestWithParam<kernels::IsaClass> {
 protected:
  void SetUp() override {
    backend_ = kernels::FindBackend(GetParam());
    if (backend_ == nullptr) GTEST_SKIP() << "not on this processor";
    golden_ = nlohmann::json::parse(
        testing::ReadFileOrEmpty(testing::GoldenPath("generation/processors.json")));
    logits_ = golden_["logits"].get<std::vector<float>>();
    tokens_ = golden_["prompt"].get<std::vector<TokenId>>();
    prompt_tokens_ = static_cast<int64_t>(tokens_.size());
    for (const TokenId token : golden_["output"]) tokens_.push_back(token);
    scratch_ = AlignedBuffer(kernels::SamplingScratchBytes(static_cast<int>(logits_.size())));
  }
  TokenId Draw(const Case& c) {
    SequenceSlice slice;
    slice.tokens = tokens_;
    slice.prompt_tokens = prompt_tokens_;
    slice.sampling = &c.sampling;
    slice.stop = &c.stop;
    const SampledToken sampled = SampleToken(slice, logits_, *backend_, scratch_.data());
    EXPECT_FALSE(sampled.no_choice);
    return sampled.token;
  }

  const kernels::Backend* backend_ = nullptr;
  nlohmann::json golden_;
  std::vector<float> logits_;
  std::vector<TokenId> tokens_;
  int64_t prompt_tokens_ = 0;
  AlignedBuffer scratch_;
};

TEST_P(Processors, GreedyTakesTheLikeliest) {
  for (const nlohmann::json& set : golden_["sets"]) {
    Case c = CaseOf(set["params"]);
    c.sampling.temperature = 0;
    EXPECT_EQ(Draw(c), set["likeliest"].get<TokenId>()) << set["params"].dump();
  }
}

// At the first two, quotients of these logits exceed the floats.
TEST_P(Processors, TinyTemperaturesTakeTheLikeliest) {
  for (const nlohmann::json& set : golden_["sets"]) {
    Case c = CaseOf(set["params"]);
    for (const double temperature : {1e-38, 2e-38, 1e-45, 1e-300, 1e-30, 0x1p-65}) {
      c.sampling.temperature = temperature;
      EXPECT_EQ(Draw(c), set["likeliest"].get<TokenId>()) << temperature << set["params"].dump();
    }
  }
  Case c;
  c.sampling.allowed_token_ids = {5};
  c.sampling.logit_bias = {{5, -100.0f}};
  c.sampling.temperature = 2e-38;
  EXPECT_EQ(Draw(c), 5);
}

TEST_P(Processors, DrawsHaveTheirDistribution) {
  const int draws = GetParam() == kernels::IsaClass::kRef ? kDrawsOfReference : kDraws;
  for (const nlohmann::json& set : golden_["sets"]) {
    SCOPED_TRACE(set["params"].dump());
    Case c = CaseOf(set["params"]);
    std::map<TokenId, int> counts;
    for (int i = 0; i < draws; ++i) {
      c.sampling.seed = 1000003ull * static_cast<uint64_t>(i);
      ++counts[Draw(c)];
    }
    double chi_square = 0, rest_expected = 0;
    int cells = 0, rest = 0;
    for (size_t i = 0; i < set["left"].size(); ++i) {
      const double expected = set["probabilities"][i].get<double>() * draws;
      const auto found = counts.find(set["left"][i].get<TokenId>());
      const int count = found == counts.end() ? 0 : found->second;
      if (found != counts.end()) counts.erase(found);
      if (expected < kCellMin) {
        rest_expected += expected;
        rest += count;
        continue;
      }
      chi_square += (count - expected) * (count - expected) / expected;
      ++cells;
    }
    if (rest_expected >= kCellMin) {
      chi_square += (rest - rest_expected) * (rest - rest_expected) / rest_expected;
      ++cells;
    }
    EXPECT_TRUE(counts.empty()) << "token " << counts.begin()->first << " should be left out";
    ASSERT_GT(cells, 1);
    EXPECT_LT(chi_square, ChiSquareLimit(cells - 1)) << cells << " cells";
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, Processors,
                         ::testing::Values(kernels::IsaClass::kRef, kernels::IsaClass::kAvx2,
                                           kernels::IsaClass::kAvx512));

}  // namespace
}  // namespace tandem::engine
