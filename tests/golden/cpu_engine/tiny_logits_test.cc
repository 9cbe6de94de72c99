// Goal: the CPU engine gives transformers' fp32 distribution for a tiny checkpoint of every
// supported architecture, at every golden position, in every backend: rope scaling, windows,
// biases, QK-norm, sandwich norms and fused projections together, through paged KV and chunked
// prompts.
#include <cmath>

#include "tests/golden/cpu_engine/engine_driver.h"
#include "tests/golden/cpu_engine/tiny_golden.h"

namespace tandem::engine {
namespace {

// The largest difference of a logprob at any golden position.
absl::StatusOr<double> WorstDifference(Engine* engine, const Golden& golden) {
  const size_t vocab = static_cast<size_t>(engine->spec().vocab_size);
  DrivenSequence sequence;
  sequence.sampling.temperature = 0;
  sequence.sampling.logprobs = static_cast<int32_t>(vocab);
  sequence.blocks = TakeBlocks(engine->spec(), 0, static_cast<int64_t>(golden.tokens.size()));
  double worst = 0;
  for (size_t p = 0; p < golden.positions.size(); ++p) {
    // The next chunk ends at the golden position, so its distribution is sampled there.
    sequence.tokens.assign(golden.tokens.begin(), golden.tokens.begin() + golden.positions[p] + 1);
    auto sampled = ComputeRest(engine, &sequence, 3);
    if (!sampled.ok()) return sampled.status();
    const std::vector<double> expected = LogSoftmax(golden.logits.data() + p * vocab, vocab);
    for (const TopLogprob& top : sampled->top_logprobs) {
      worst = std::max(worst, std::abs(top.logprob - expected[static_cast<size_t>(top.token)]));
    }
    if (sampled->top_logprobs.size() != vocab) return absl::InternalError("logprobs missing");
  }
  return worst;
}

class TinyLogitsTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

TEST_P(TinyLogitsTest, MatchTransformers) {
  const std::string path = testing::GoldenPath(std::string("tiny/") + std::get<0>(GetParam()));
  const std::string isa = std::get<1>(GetParam());
  const bool is_gguf = path.find(".gguf") != std::string::npos;
  const Golden golden = ReadGolden(is_gguf ? path.substr(0, path.rfind('/')) : path);
  ASSERT_FALSE(golden.logits.empty()) << path;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(path));
  // fp32 throughout errs by some 1e-5 as the reference does; a wrong scale, window or row order by
  // 1e-2 and more. K and V rounded to bf16 err by 2^-9 of themselves, which random weights turn
  // into some 5e-2 of a logit; there only a gross error shows.
  for (const auto& [kv_type, tolerance] : {std::pair("f32", 2e-4), std::pair("bf16", 0.2)}) {
    CpuEngineOptions options;
    options.threads = 2;
    options.isa = isa;
    options.kv_type = kv_type;
    options.block_tokens = 16;
    auto engine = NewCpuEngine(*checkpoint, options);
    if (engine.status().message().find("processor has only") != std::string::npos) {
      GTEST_SKIP() << engine.status().message();
    }
    ASSERT_OK(engine.status());
    ASSERT_OK((*engine)->AllocateKv(8));
    // With dot products weights and activations are bf16 too, in every product of every layer.
    const std::string& numerics = (*engine)->spec().numerics_id;
    const bool dots = numerics.find("bf16dot") != std::string::npos ||
                      numerics.find("cpu-amx") != std::string::npos;
    ASSERT_OK_AND_ASSIGN(const double worst, WorstDifference(engine->get(), golden));
    EXPECT_LT(worst, dots ? 0.3 : tolerance) << path << " with KV in " << kv_type;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, TinyLogitsTest,
    ::testing::Combine(
        ::testing::Values("llama", "llama/llama.gguf", "llama3", "llama3/llama3.gguf", "smollm2",
                          "mistral", "qwen2", "qwen2/qwen2.gguf", "qwen3", "qwen3/qwen3.gguf",
                          "qwen3_yarn", "gemma3", "gemma3/gemma3.gguf", "llama_fp8_channel",
                          "llama_fp8_tensor", "qwen3_fp8_block"),
        ::testing::Values("ref", "avx2", "avx512", "avx512bf16", "amx", "amx_emulated")),
    [](const ::testing::TestParamInfo<TinyLogitsTest::ParamType>& param) {
      std::string name = std::string(std::get<0>(param.param)) + "_" + std::get<1>(param.param);
      for (char& c : name) {
        if (c == '/' || c == '.') c = '_';
      }
      return name;
    });

}  // namespace
}  // namespace tandem::engine
