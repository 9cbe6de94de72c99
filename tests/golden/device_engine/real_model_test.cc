// Goal: real checkpoints give transformers' answers on the device engine: on a GPU where there is
// one, and on the emulated device when TANDEM_EMULATE_REAL_MODELS is set (minutes of one core).
#include <cstdlib>
#include <iostream>

#include "nlohmann/json.hpp"
#include "tests/golden/cpu_engine/transformers_golden.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

class DeviceRealModelTest : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (DeviceIsMissing(GetParam())) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
    if (GetParam() == DeviceKind::kEmulated && std::getenv("TANDEM_EMULATE_REAL_MODELS") == nullptr)
      GTEST_SKIP() << "takes minutes: set TANDEM_EMULATE_REAL_MODELS=1";
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceRealModelTest,
                         ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda),
                         [](const ::testing::TestParamInfo<DeviceKind>& param) {
                           return DeviceKindName(param.param);
                         });

TEST_P(DeviceRealModelTest, SmolLm2NamesTheCapitalOfFrance) {
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(path));
  // "What is the capital of France?" under the model's template.
  const std::vector<TokenId> prompt = {
      1,   9690, 198, 2683, 359,   253,  5356, 5646, 11173, 3365, 3511, 308,  34519,
      28,  7018, 411, 407,  19712, 8182, 2,    198,  1,     4093, 198,  1780, 314,
      260, 3575, 282, 4649, 47,    2,    198,  1,    520,   9531, 198};
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Engine> engine,
                       NewEngineOn(GetParam(), *checkpoint, {}));
  ASSERT_OK(engine->AllocateKv(16));
  DrivenSequence sequence;
  sequence.tokens = prompt;
  sequence.prompt_tokens = static_cast<int64_t>(prompt.size());
  sequence.sampling.temperature = 0;
  sequence.blocks = TakeBlocks(engine->spec(), 0, sequence.prompt_tokens + 20);
  std::string text;
  for (int i = 0; i < 20; ++i) {
    ASSERT_OK_AND_ASSIGN(const SampledToken sampled, ComputeRest(engine.get(), &sequence, 64));
    const std::string& token = checkpoint->tokenizer().tokens[static_cast<size_t>(sampled.token)];
    std::cout << "token " << sampled.token << " " << token << std::endl;
    text += token;
    sequence.tokens.push_back(sampled.token);
    if (sampled.token == 2) break;
  }
  // Ġ (U+0120) is byte-level BPE's space.
  EXPECT_EQ(text,
            "The\xC4\xA0"
            "capital\xC4\xA0of\xC4\xA0"
            "France\xC4\xA0is\xC4\xA0"
            "Paris.<|im_end|>");
}

// Top logprobs and greedy tokens of a file of make_real_goldens.py; tokens only as long as the
// reference's top two are further apart than bf16 can move them.
void ExpectGoldens(DeviceKind kind, const std::string& model_path, const std::string& name) {
  const auto goldens = nlohmann::json::parse(
      testing::ReadFileOrEmpty(testing::GoldenPath("cpu_engine/real/" + name)), nullptr, false);
  ASSERT_TRUE(goldens.is_array()) << name;
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<model::Checkpoint> checkpoint,
                       model::Checkpoint::Open(model_path));
  ASSERT_OK_AND_ASSIGN(const std::unique_ptr<Engine> engine, NewEngineOn(kind, *checkpoint, {}));
  ASSERT_OK(engine->AllocateKv(64));
  constexpr double kTolerance = 0.25;
  ExpectGoldens(engine.get(), goldens, kTolerance);
}

TEST_P(DeviceRealModelTest, SmolLm2AgreesWithTransformers) {
  if (GetParam() == DeviceKind::kEmulated) GTEST_SKIP() << "takes an hour on the emulated device";
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kSmolLm2File);
  ExpectGoldens(GetParam(), path, "smollm2.json");
}

TEST_P(DeviceRealModelTest, Gemma3AgreesWithTransformers) {
  if (GetParam() == DeviceKind::kEmulated) GTEST_SKIP() << "takes an hour on the emulated device";
  TANDEM_FIND_MODEL_OR_SKIP(path, testing::kGemma3File);
  ExpectGoldens(GetParam(), path, "gemma3.json");
}

}  // namespace
}  // namespace tandem::engine
