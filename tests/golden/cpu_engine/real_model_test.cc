// Goal: real checkpoints give transformers' greedy answers. Skips where a model was not fetched.
#include "kernels/api/backend.h"
#include "nlohmann/json.hpp"
#include "tests/golden/cpu_engine/transformers_golden.h"

namespace tandem::engine {
namespace {

// Byte-level BPE text: Ġ (U+0120) is a space, Ċ (U+010A) a newline; the rest is plain in these
// answers.
std::string Plain(std::string text) {
  for (const auto& [from, to] :
       {std::pair("\xC4\xA0", " "), std::pair("\xC4\x8A", "\n"), std::pair("\xE2\x96\x81", " ")}) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from)) {
      text.replace(at, std::string(from).size(), to);
    }
  }
  return text;
}

// `count` greedy tokens after `prompt`, or fewer when `stop` is drawn.
absl::StatusOr<std::vector<TokenId>> Greedy(Engine* engine, std::vector<TokenId> prompt,
                                            size_t count, TokenId stop) {
  DrivenSequence sequence;
  sequence.tokens = std::move(prompt);
  sequence.prompt_tokens = static_cast<int64_t>(sequence.tokens.size());
  sequence.sampling.temperature = 0;
  sequence.blocks =
      TakeBlocks(engine->spec(), 0, sequence.prompt_tokens + static_cast<int64_t>(count));
  std::vector<TokenId> answer;
  while (answer.size() < count) {
    auto sampled = ComputeRest(engine, &sequence, 16);
    if (!sampled.ok()) return sampled.status();
    answer.push_back(sampled->token);
    sequence.tokens.push_back(sampled->token);
    if (sampled->token == stop) break;
  }
  return answer;
}

void ExpectCapitalOfFrance(const std::string& path, const CpuEngineOptions& options) {
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(path));
  // "What is the capital of France?" under the model's template.
  const std::vector<TokenId> prompt = {
      1,   9690, 198, 2683, 359,   253,  5356, 5646, 11173, 3365, 3511, 308,  34519,
      28,  7018, 411, 407,  19712, 8182, 2,    198,  1,     4093, 198,  1780, 314,
      260, 3575, 282, 4649, 47,    2,    198,  1,    520,   9531, 198};
  ASSERT_EQ(prompt.size(), 37u);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Engine> engine, NewCpuEngine(*checkpoint, options));
  ASSERT_OK(engine->AllocateKv(16));
  ASSERT_OK_AND_ASSIGN(const std::vector<TokenId> answer, Greedy(engine.get(), prompt, 20, 2));
  std::string text;
  for (TokenId token : answer) {
    text += Plain(checkpoint->tokenizer().tokens[static_cast<size_t>(token)]);
  }
  EXPECT_EQ(text, "The capital of France is Paris.<|im_end|>");
}

TEST(RealModel, SmolLm2NamesTheCapitalOfFrance) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  ExpectCapitalOfFrance(path, {});
}

// All goldens would take a minute there.
TEST(RealModel, SmolLm2NamesTheCapitalOfFranceOnEmulatedTiles) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  const std::string why = kernels::WhyMissing(kernels::IsaClass::kAmxEmulated);
  if (!why.empty()) GTEST_SKIP() << why;
  ExpectCapitalOfFrance(path, {.isa = "amx_emulated"});
}

// Compares with a file of make_real_goldens.py: top logprobs after the prompt and in its middle,
// and greedy tokens as long as the reference's top two are further apart than rounding can move
// them.
void ExpectGoldens(const std::string& model_path, const std::string& golden_name,
                   const std::string& isa) {
  const auto goldens = nlohmann::json::parse(
      testing::ReadFileOrEmpty(testing::GoldenPath("cpu_engine/real/" + golden_name)), nullptr,
      false);
  ASSERT_TRUE(goldens.is_array()) << golden_name;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(model_path));
  CpuEngineOptions options;
  options.isa = isa;
  const bool dots = isa == "avx512bf16" || isa == "amx";
  options.kv_type = dots ? "bf16" : "f32";
  auto made = NewCpuEngine(*checkpoint, options);
  if (made.status().message().find("processor has only") != std::string::npos) {
    GTEST_SKIP() << made.status().message();
  }
  ASSERT_OK(made.status());
  const std::unique_ptr<Engine> engine = *std::move(made);
  ASSERT_OK(engine->AllocateKv(32));
  // fp32 on both sides: errors of some 1e-4 accumulate over the layers. With bf16 weights,
  // activations and cache each product's terms are off by about 2^-9 of themselves, which adds up
  // to some percent of a logit's deviation of 4.
  const double tolerance = dots ? 0.4 : 5e-3;
  ExpectGoldens(engine.get(), goldens, tolerance);
}

class RealModelClass : public ::testing::TestWithParam<const char*> {};

TEST_P(RealModelClass, SmolLm2AgreesWithTransformers) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  ExpectGoldens(path, "smollm2.json", GetParam());
}

TEST_P(RealModelClass, Gemma3AgreesWithTransformers) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kGemma3File);
  ExpectGoldens(path, "gemma3.json", GetParam());
}

INSTANTIATE_TEST_SUITE_P(Classes, RealModelClass,
                         ::testing::Values("avx2", "avx512", "avx512bf16", "amx"),
                         [](const auto& info) { return std::string(info.param); });

// A prompt of several attention partitions; tiny checkpoints have contexts of one.
TEST(RealModel, LongPromptsDoNotDependOnChunksOrThreads) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(path));
  DrivenSequence request;
  for (TokenId i = 0; i < 700; ++i) request.tokens.push_back(100 + i * 7919 % 40000);
  request.prompt_tokens = 700;
  request.sampling.seed = 17;
  request.sampling.logprobs = 5;
  std::vector<SampledToken> answers;
  for (const auto& [threads, chunk] : {std::pair(2, 700), std::pair(1, 256), std::pair(3, 99)}) {
    CpuEngineOptions options;
    options.threads = threads;
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Engine> engine, NewCpuEngine(*checkpoint, options));
    ASSERT_OK(engine->AllocateKv(64));
    DrivenSequence sequence = request;
    sequence.blocks = TakeBlocks(engine->spec(), threads, 710);
    for (int i = 0; i < 4; ++i) {
      ASSERT_OK_AND_ASSIGN(const SampledToken sampled, ComputeRest(engine.get(), &sequence, chunk));
      sequence.tokens.push_back(sampled.token);
      answers.push_back(sampled);
    }
  }
  for (size_t i = 4; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].token, answers[i % 4].token);
    EXPECT_EQ(answers[i].logprob, answers[i % 4].logprob);
    for (size_t t = 0; t < 5; ++t) {
      EXPECT_EQ(answers[i].top_logprobs[t].token, answers[i % 4].top_logprobs[t].token);
      EXPECT_EQ(answers[i].top_logprobs[t].logprob, answers[i % 4].top_logprobs[t].logprob);
    }
  }
}

}  // namespace
}  // namespace tandem::engine
