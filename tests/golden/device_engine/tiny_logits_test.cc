// Goal: the device engine gives transformers' fp32 distribution, within what bf16 operands allow,
// for a tiny checkpoint of every supported architecture: windows, biases, QK-norm, sandwich norms,
// rope scaling and fused projections, through paged KV, chunked prompts and the attention schedule.
#include <cmath>
#include <iostream>

#include "tests/golden/cpu_engine/tiny_golden.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

// Root mean squares over all golden positions and tokens.
struct Agreement {
  double error = 0;   // of logprobs against the golden
  double spread = 0;  // of the golden's logprobs around their mean
};

absl::StatusOr<Agreement> Compare(Engine* engine, const Golden& golden) {
  const size_t vocab = static_cast<size_t>(engine->spec().vocab_size);
  DrivenSequence sequence;
  sequence.sampling.temperature = 0;
  sequence.sampling.logprobs = static_cast<int32_t>(vocab);
  sequence.blocks = TakeBlocks(engine->spec(), 0, static_cast<int64_t>(golden.tokens.size()));
  double errors = 0, squares = 0, sum = 0, count = 0;
  for (size_t p = 0; p < golden.positions.size(); ++p) {
    sequence.tokens.assign(golden.tokens.begin(), golden.tokens.begin() + golden.positions[p] + 1);
    auto sampled = ComputeRest(engine, &sequence, 5);
    if (!sampled.ok()) return sampled.status();
    if (sampled->top_logprobs.size() != vocab) return absl::InternalError("logprobs missing");
    const std::vector<double> expected = LogSoftmax(golden.logits.data() + p * vocab, vocab);
    for (const TopLogprob& top : sampled->top_logprobs) {
      const double golden_logprob = expected[static_cast<size_t>(top.token)];
      errors += (top.logprob - golden_logprob) * (top.logprob - golden_logprob);
      squares += golden_logprob * golden_logprob;
      sum += golden_logprob;
      count += 1;
    }
  }
  return Agreement{std::sqrt(errors / count),
                   std::sqrt(squares / count - sum / count * sum / count)};
}

class DeviceTinyLogitsTest
    : public ::testing::TestWithParam<std::tuple<const char*, DeviceKind, const char*>> {};

// Share of the logprobs' spread that may be lost. Weights, operands, K, V and probabilities are
// each rounded to 2^-8 of themselves, several times a layer. int8 rounds K and V to 1/254 of a
// head's largest element, e4m3 to 2^-4 of each. A wrong scale, window, order or table errs by as
// much as the logprobs spread.
double ToleratedShare(const std::string& kv_type) { return kv_type == "fp8" ? 0.12 : 0.04; }

TEST_P(DeviceTinyLogitsTest, MatchTransformers) {
  const auto& [name, kind, kv_type] = GetParam();
  if (DeviceIsMissing(kind)) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
  const std::string path = testing::GoldenPath(std::string("tiny/") + name);
  const Golden golden = ReadGolden(path);
  ASSERT_FALSE(golden.logits.empty()) << path;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(path));
  DeviceEngineOptions options = {.threads = 1, .block_tokens = 16};
  options.kv_type = kv_type;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Engine> engine,
                       NewEngineOn(kind, *checkpoint, options));
  ASSERT_OK(engine->AllocateKv(8));
  ASSERT_OK_AND_ASSIGN(const Agreement agreement, Compare(engine.get(), golden));
  std::cout << "rms error " << agreement.error << ", spread " << agreement.spread << "\n";
  EXPECT_LT(agreement.error, ToleratedShare(kv_type) * agreement.spread) << path;
}

std::string LogitsName(const ::testing::TestParamInfo<DeviceTinyLogitsTest::ParamType>& param) {
  return std::string(std::get<0>(param.param)) + "_" + DeviceKindName(std::get<1>(param.param)) +
         "_" + std::get<2>(param.param);
}
INSTANTIATE_TEST_SUITE_P(
    All, DeviceTinyLogitsTest,
    ::testing::Combine(::testing::Values("llama", "llama3", "smollm2", "mistral", "qwen2", "qwen3",
                                         "qwen3_yarn", "gemma3"),
                       ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda),
                       ::testing::Values("bf16")),
    LogitsName);
INSTANTIATE_TEST_SUITE_P(Codes, DeviceTinyLogitsTest,
                         ::testing::Combine(::testing::Values("llama", "mistral", "gemma3"),
                                            ::testing::Values(DeviceKind::kEmulated,
                                                              DeviceKind::kCuda),
                                            ::testing::Values("int8", "fp8")),
                         LogitsName);
INSTANTIATE_TEST_SUITE_P(HopperKernels, DeviceTinyLogitsTest,
                         ::testing::Combine(::testing::Values("llama", "gemma3"),
                                            ::testing::Values(DeviceKind::kEmulatedHopper),
                                            ::testing::Values("bf16")),
                         LogitsName);

}  // namespace
}  // namespace tandem::engine
