// Goal: the accuracy figures are what they say. The fp32 model measured against itself loses
// nothing; its perplexity is that of its own log-probabilities; rounding weights more coarsely
// costs more; what cannot be measured is refused in words.
#include "cli/bench/evaluation.h"

#include <cmath>
#include <random>

#include "common/engine/cpu/cpu_choices.h"
#include "kernels/api/backend.h"
#include "tests/golden/cpu_engine/engine_driver.h"

namespace tandem::engine {
namespace {

class EvaluationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(testing::GoldenPath("tiny/smollm2")));
    std::mt19937 random(20261122);
    for (int i = 0; i < 300; ++i) tokens_.push_back(static_cast<TokenId>(random() % 144));
  }

  absl::StatusOr<EvaluationReport> Run(const EvaluationOptions& options) const {
    return Evaluate(*checkpoint_, tokens_, {}, options);
  }

  static EvaluationOptions Small() {
    return {.engine = {.threads = 2},
            .weights = {"f32", "bf16", "int8", "int4"},
            .kv_types = {"f32"},
            .window_tokens = 60,
            .positions = 200,
            .greedy_prompts = 2,
            .greedy_tokens = 8};
  }

  std::unique_ptr<model::Checkpoint> checkpoint_;
  std::vector<TokenId> tokens_;
};

TEST_F(EvaluationTest, CoarserRoundingCostsMore) {
  ASSERT_OK_AND_ASSIGN(const EvaluationReport report, Run(Small()));
  EXPECT_EQ(report.positions, 200);
  EXPECT_EQ(report.greedy_prompts, 2);
  ASSERT_EQ(report.results.size(), 4u);
  const EvaluationResult& same = report.results[0];
  EXPECT_EQ(same.perplexity, report.baseline.perplexity);
  EXPECT_NEAR(same.kl_mean, 0, 1e-12);
  EXPECT_EQ(same.top_share, 1);
  EXPECT_EQ(same.greedy_share, 1);
  EXPECT_EQ(same.greedy_equal, 2);
  const EvaluationResult &bf16 = report.results[1], &int8 = report.results[2];
  // The checkpoint's weights are bf16 already; only classes with bf16 products round activations,
  // too.
  const kernels::IsaClass isa = kernels::BestBackend().isa;
  if (isa == kernels::IsaClass::kAvx512Bf16 || isa == kernels::IsaClass::kAmx) {
    EXPECT_GT(bf16.kl_mean, 0);
  } else {
    EXPECT_EQ(bf16.kl_mean, 0);
  }
  EXPECT_GT(int8.kl_mean, bf16.kl_mean);
  EXPECT_LT(int8.kl_mean, 0.05);
  EXPECT_LT(int8.weight_bytes, bf16.weight_bytes);
  const EvaluationResult& int4 = report.results[3];
  EXPECT_GT(int4.kl_mean, int8.kl_mean);
  EXPECT_LT(int4.weight_bytes, int8.weight_bytes);
  EXPECT_LT(bf16.weight_bytes, same.weight_bytes);
}

TEST_F(EvaluationTest, Bf16ProductsRoundActivations) {
  if (kernels::FindBackend(kernels::IsaClass::kAvx512Bf16) == nullptr) {
    GTEST_SKIP() << kernels::WhyMissing(kernels::IsaClass::kAvx512Bf16);
  }
  EvaluationOptions options = Small();
  options.engine.isa = "avx512bf16";
  options.weights = {"bf16"};
  ASSERT_OK_AND_ASSIGN(const EvaluationReport report, Run(options));
  ASSERT_EQ(report.results.size(), 1u);
  EXPECT_GT(report.results[0].kl_mean, 0);
}

TEST_F(EvaluationTest, PerplexityIsThatOfTheEnginesLogprobs) {
  EvaluationOptions options = Small();
  options.weights = {};
  options.positions = 59;
  options.greedy_prompts = 0;
  ASSERT_OK_AND_ASSIGN(const EvaluationReport report, Run(options));
  ASSERT_EQ(report.positions, 59);
  ASSERT_OK_AND_ASSIGN(const auto engine,
                       NewCpuEngine(*checkpoint_, {.weights = "f32", .kv_type = "f32"}));
  ASSERT_OK(engine->AllocateKv(8));
  const std::vector<BlockId> blocks = TakeBlocks(engine->spec(), 0, 60);
  std::vector<SampledToken> scores;
  SequenceSlice slice;
  slice.tokens = absl::MakeConstSpan(tokens_).subspan(0, 60);
  slice.num_new = slice.prompt_tokens = 60;
  slice.blocks = blocks;
  slice.prompt_scores = &scores;
  ASSERT_OK(engine->Step({slice}, [](int) {}).status());
  ASSERT_EQ(scores.size(), 59u);
  double sum = 0;
  for (const SampledToken& score : scores) sum -= score.logprob;
  EXPECT_NEAR(std::log(report.baseline.perplexity), sum / 59, 1e-5);
}

TEST_F(EvaluationTest, RefusesInWords) {
  const auto message = [&](EvaluationOptions options) {
    return std::string(Run(options).status().message());
  };
  EvaluationOptions options = Small();
  options.weights = {"int2"};
  EXPECT_THAT(message(options), ::testing::HasSubstr("weights is \"int2\""));
  options = Small();
  options.window_tokens = 100000;
  EXPECT_THAT(message(options), ::testing::HasSubstr("windows of 100000 tokens"));
  options = Small();
  tokens_.resize(1);
  EXPECT_THAT(message(options), ::testing::HasSubstr("the text has 1 tokens"));
  tokens_ = {1, 2, 1 << 30};
  EXPECT_THAT(message(Small()), ::testing::HasSubstr("outside the vocabulary"));
}

}  // namespace
}  // namespace tandem::engine
