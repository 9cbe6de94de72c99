// Goal: a value of --weights means on a device what it means on a CPU: the distributions of the two
// engines agree within what bf16 operands allow. fp8, which a CPU has not, stays near transformers'
// fp32. With every type of weights a row's bits are its own, and what is not there is refused. fp8
// means fp8 activations too on devices that multiply them, and nowhere else.
#include <cmath>
#include <iostream>
#include <map>

#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_engine.h"
#include "tests/golden/cpu_engine/tiny_golden.h"
#include "tests/golden/device_engine/device_engines.h"

namespace tandem::engine {
namespace {

// Every logprob at every golden position, by position and token. Prompts go in chunks.
absl::StatusOr<std::vector<double>> Logprobs(Engine* engine, const Golden& golden, int64_t chunk) {
  const size_t vocab = static_cast<size_t>(engine->spec().vocab_size);
  RETURN_IF_ERROR(engine->AllocateKv(8));
  DrivenSequence sequence;
  sequence.sampling.temperature = 0;
  sequence.sampling.logprobs = static_cast<int32_t>(vocab);
  sequence.blocks = TakeBlocks(engine->spec(), 0, static_cast<int64_t>(golden.tokens.size()));
  std::vector<double> logprobs;
  for (const int64_t position : golden.positions) {
    sequence.tokens.assign(golden.tokens.begin(), golden.tokens.begin() + position + 1);
    auto sampled = ComputeRest(engine, &sequence, chunk);
    RETURN_IF_ERROR(sampled.status());
    if (sampled->top_logprobs.size() != vocab) return absl::InternalError("logprobs missing");
    std::map<TokenId, double> by_token;
    for (const TopLogprob& top : sampled->top_logprobs) by_token[top.token] = top.logprob;
    for (const auto& [token, logprob] : by_token) logprobs.push_back(logprob);
  }
  return logprobs;
}

std::vector<double> GoldenLogprobs(const Golden& golden) {
  const size_t vocab = golden.logits.size() / golden.positions.size();
  std::vector<double> logprobs;
  for (size_t p = 0; p < golden.positions.size(); ++p) {
    const std::vector<double> some = LogSoftmax(golden.logits.data() + p * vocab, vocab);
    logprobs.insert(logprobs.end(), some.begin(), some.end());
  }
  return logprobs;
}

double RootMeanSquare(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum / static_cast<double>(a.size()));
}
double Spread(const std::vector<double>& logprobs) {
  double sum = 0;
  for (double logprob : logprobs) sum += logprob;
  return RootMeanSquare(
      logprobs, std::vector<double>(logprobs.size(), sum / static_cast<double>(logprobs.size())));
}

class DeviceWeightTypesTest : public ::testing::TestWithParam<std::tuple<const char*, DeviceKind>> {
 protected:
  void SetUp() override {
    kind_ = std::get<1>(GetParam());
    if (DeviceIsMissing(kind_)) GTEST_SKIP() << "needs a GPU: " << kernels::DescribeCuda();
    const std::string path = testing::GoldenPath(std::string("tiny/") + std::get<0>(GetParam()));
    golden_ = ReadGolden(path);
    ASSERT_FALSE(golden_.logits.empty()) << path;
    ASSERT_OK_AND_ASSIGN(checkpoint_, model::Checkpoint::Open(path));
  }

  absl::StatusOr<std::unique_ptr<Engine>> NewEngine(const std::string& weights) {
    DeviceEngineOptions options;
    options.threads = 1;
    options.block_tokens = 16;
    options.weights = weights;
    return NewEngineOn(kind_, *checkpoint_, options);
  }
  std::vector<double> OfDevice(const std::string& weights, int64_t chunk) {
    auto engine = NewEngine(weights);
    EXPECT_OK(engine.status());
    if (!engine.ok()) return {};
    auto logprobs = Logprobs(engine->get(), golden_, chunk);
    EXPECT_OK(logprobs.status());
    return logprobs.ok() ? *logprobs : std::vector<double>();
  }
  std::vector<double> OfCpu(const std::string& weights) {
    CpuEngineOptions options;
    options.threads = 1;
    options.block_tokens = 16;
    options.weights = weights;
    auto engine = NewCpuEngine(*checkpoint_, options);
    EXPECT_OK(engine.status());
    if (!engine.ok()) return {};
    auto logprobs = Logprobs(engine->get(), golden_, 100);
    EXPECT_OK(logprobs.status());
    return logprobs.ok() ? *logprobs : std::vector<double>();
  }

  DeviceKind kind_ = DeviceKind::kEmulated;
  Golden golden_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
};
std::string CaseName(const ::testing::TestParamInfo<DeviceWeightTypesTest::ParamType>& param) {
  return std::string(std::get<0>(param.param)) + "_" + DeviceKindName(std::get<1>(param.param));
}
const auto kKinds = ::testing::Values(DeviceKind::kEmulated, DeviceKind::kCuda);
INSTANTIATE_TEST_SUITE_P(All, DeviceWeightTypesTest,
                         ::testing::Combine(::testing::Values("llama", "gemma3"), kKinds),
                         CaseName);

// What one model shows.
class DeviceWeightTypeRulesTest : public DeviceWeightTypesTest {};
INSTANTIATE_TEST_SUITE_P(All, DeviceWeightTypeRulesTest,
                         ::testing::Combine(::testing::Values("llama"), kKinds), CaseName);

TEST_P(DeviceWeightTypesTest, MeanWhatTheCpuMeans) {
  const std::vector<double> golden = GoldenLogprobs(golden_);
  const double spread = Spread(golden);
  for (const std::string weights : {"int8", "int4"}) {
    const std::vector<double> device = OfDevice(weights, 7), cpu = OfCpu(weights);
    ASSERT_EQ(device.size(), golden.size());
    ASSERT_EQ(cpu.size(), golden.size());
    const double apart = RootMeanSquare(device, cpu) / spread;
    const double lost = RootMeanSquare(cpu, golden) / spread;
    std::cout << weights << ": " << apart << " of the spread from the CPU's, which is " << lost
              << " from fp32\n";
    // bf16 operands cost up to 0.04 (tiny_logits_test.cc), and an activation that was rounded to
    // bf16 first may fall to the next step of int8. Another scale or order errs by the whole
    // spread.
    EXPECT_LT(apart, 0.1) << weights;
  }
}

TEST_P(DeviceWeightTypesTest, Fp8StaysNearFp32) {
  const std::vector<double> golden = GoldenLogprobs(golden_);
  const std::vector<double> fp8 = OfDevice("fp8a16", 7);
  ASSERT_EQ(fp8.size(), golden.size());
  const double lost = RootMeanSquare(fp8, golden) / Spread(golden);
  std::cout << "fp8a16: " << lost << " of the spread from fp32\n";
  // Weights are rounded to 2^-4 of themselves where bf16 operands are to 2^-8.
  EXPECT_LT(lost, 0.15);
}

// On devices that multiply fp8.
class DeviceFp8ProductsTest : public DeviceWeightTypesTest {
 protected:
  void SetUp() override {
    DeviceWeightTypesTest::SetUp();
    if (checkpoint_ == nullptr) return;
    ASSERT_OK_AND_ASSIGN(const auto engine, NewEngine("fp8"));
    if (engine->spec().numerics_id.find("-wfp8a8+int8-") != std::string::npos) return;
    ASSERT_EQ(kind_, DeviceKind::kCuda) << engine->spec().numerics_id;
    GTEST_SKIP() << "this GPU has no fp8 products: " << engine->spec().numerics_id;
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceFp8ProductsTest,
                         ::testing::Combine(::testing::Values("llama", "gemma3"),
                                            ::testing::Values(DeviceKind::kEmulatedHopper,
                                                              DeviceKind::kCuda)),
                         CaseName);

TEST_P(DeviceFp8ProductsTest, StayNearFp32) {
  const std::vector<double> golden = GoldenLogprobs(golden_);
  const std::vector<double> fp8 = OfDevice("fp8", 7);
  ASSERT_EQ(fp8.size(), golden.size());
  const double lost = RootMeanSquare(fp8, golden) / Spread(golden);
  std::cout << "fp8 weights and activations: " << lost << " of the spread from fp32\n";
  // Both operands are rounded to 2^-4 of themselves, where weights alone err by up to 0.15.
  EXPECT_LT(lost, 0.2);
  EXPECT_GT(lost, 0.01) << "nothing was rounded";
}

// What one model shows.
using DeviceFp8ProductRulesTest = DeviceFp8ProductsTest;
INSTANTIATE_TEST_SUITE_P(All, DeviceFp8ProductRulesTest,
                         ::testing::Combine(::testing::Values("llama"),
                                            ::testing::Values(DeviceKind::kEmulatedHopper,
                                                              DeviceKind::kCuda)),
                         CaseName);

TEST_P(DeviceFp8ProductRulesTest, HaveBitsThatDoNotDependOnChunks) {
  golden_.positions.resize(std::min<size_t>(golden_.positions.size(), 2));
  const std::vector<double> whole = OfDevice("fp8", 1000);
  ASSERT_FALSE(whole.empty());
  EXPECT_EQ(OfDevice("fp8", 1), whole);
}

TEST_P(DeviceFp8ProductRulesTest, AreLeftOutOnRequest) {
  ASSERT_OK_AND_ASSIGN(const auto engine, NewEngine("fp8a16"));
  EXPECT_THAT(engine->spec().numerics_id, ::testing::HasSubstr("-wfp8+int8-"));
  ASSERT_OK_AND_ASSIGN(const auto fp8, NewEngine("fp8"));
  ASSERT_OK_AND_ASSIGN(const int64_t few, fp8->ProfileStepBytes(8));
  ASSERT_OK_AND_ASSIGN(const int64_t many, fp8->ProfileStepBytes(70));
  EXPECT_GT(many, few);
}

TEST_P(DeviceWeightTypeRulesTest, BitsDoNotDependOnChunks) {
  golden_.positions.resize(std::min<size_t>(golden_.positions.size(), 2));
  for (const std::string weights : {"int8", "int4", "fp8"}) {
    const std::vector<double> whole = OfDevice(weights, 1000);
    ASSERT_FALSE(whole.empty());
    // Chunks of one token run as graphs and take the narrowest tile.
    EXPECT_EQ(OfDevice(weights, 1), whole) << weights;
  }
}

TEST_P(DeviceWeightTypeRulesTest, AreNamedProfiledAndRefused) {
  for (const auto& [weights, name] :
       {std::pair("auto", "-wbf16-"), std::pair("int8", "-wint8-"),
        std::pair("int4", "-wint4+int8-"), std::pair("fp8", "-wfp8"),
        std::pair("fp8a16", "-wfp8+int8-"), std::pair("as-stored", "-wstored-int4+int8-")}) {
    ASSERT_OK_AND_ASSIGN(const auto engine, NewEngine(weights));
    EXPECT_THAT(engine->spec().numerics_id, ::testing::HasSubstr(name));
    ASSERT_OK_AND_ASSIGN(const int64_t few, engine->ProfileStepBytes(8));
    ASSERT_OK_AND_ASSIGN(const int64_t many, engine->ProfileStepBytes(70));
    EXPECT_GT(many, few) << weights;
  }
  for (const char* weights : {"f32", "int5", ""}) {
    const absl::Status status = NewEngine(weights).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << weights;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("fp8")) << "says what there is";
  }
  CpuEngineOptions options;
  options.weights = "fp8";
  const absl::Status status = NewCpuEngine(*checkpoint_, options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("--device cuda"));
}

}  // namespace
}  // namespace tandem::engine
