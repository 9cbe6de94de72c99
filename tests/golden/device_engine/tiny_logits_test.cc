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

class DeviceTinyLogitsTest : public ::testing::TestWithParam<std::tuple<const char*, DeviceKind>> {
};

TEST_P(DeviceTinyLogitsTest, MatchTransformers) {
  const auto& [name, kind] = GetParam();
  if (DeviceIsMissing(kind)) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
  const std::string path = testing::GoldenPath(std::string("tiny/") + name);
  const Golden golden = ReadGolden(path);
  ASSERT_FALSE(golden.logits.empty()) << path;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(path));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Engine> engine,
                       NewEngineOn(kind, *checkpoint, {.threads = 1, .block_tokens = 16}));
  ASSERT_OK(engine->AllocateKv(8));
  ASSERT_OK_AND_ASSIGN(const Agreement agreement, Compare(engine.get(), golden));
  std::cout << "rms error " << agreement.error << ", spread " << agreement.spread << "\n";
  // Weights, operands, K, V and probabilities are each rounded to 2^-8 of themselves, several times
  // a layer. A wrong scale, window, order or table errs by as much as the logprobs spread.
  EXPECT_LT(agreement.error, 0.04 * agreement.spread) << path;
}

INSTANTIATE_TEST_SUITE_P(
    All, DeviceTinyLogitsTest,
    ::testing::Combine(::testing::Values("llama", "llama3", "smollm2", "mistral", "qwen2", "qwen3",
                                         "qwen3_yarn", "gemma3"),
                       ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda)),
    [](const ::testing::TestParamInfo<DeviceTinyLogitsTest::ParamType>& param) {
      return std::string(std::get<0>(param.param)) + "_" + DeviceKindName(std::get<1>(param.param));
    });
INSTANTIATE_TEST_SUITE_P(
    HopperKernels, DeviceTinyLogitsTest,
    ::testing::Combine(::testing::Values("llama", "gemma3"),
                       ::testing::Values(DeviceKind::kEmulatedHopper)),
    [](const ::testing::TestParamInfo<DeviceTinyLogitsTest::ParamType>& param) {
      return std::string(std::get<0>(param.param)) + "_" + DeviceKindName(std::get<1>(param.param));
    });

}  // namespace
}  // namespace tandem::engine
