// Goal: an fp8 checkpoint's matrices lie on a device as the file has them, code for code and scale
// for scale, whatever its layout and wherever projections are fused, with --weights as-stored and
// fp8; those with scales by block are rounded as documented. The engine then gives the logits that
// transformers gives in fp32 with the same weights, keeps a row's bits over chunks, says in its
// numerics id what it has, and refuses codes that are no numbers.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <random>

#include "common/base/status_macros.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/engine/device/device_weights.h"
#include "kernels/api/device_matrix.h"
#include "kernels/api/device_weight_type.h"
#include "tests/golden/cpu_engine/tiny_golden.h"
#include "tests/golden/device_engine/device_engines.h"
#include "tests/testing/fp8_checkpoint.h"

namespace tandem::engine {
namespace {

using kernels::DeviceWeightType;
using testing::Fp8Folder;
using testing::Fp8Layout;
using testing::Fp8Matrix;

uint64_t NewSeed() {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  return seed;
}

// Row `row` of a matrix in an emulated device's memory, which is the host's.
kernels::DevicePackArgs RowOf(const DeviceMatrix& matrix, int64_t row) {
  const kernels::DeviceRowBytes bytes = kernels::RowBytesOf(matrix.type, matrix.k);
  kernels::DevicePackArgs args;
  args.type = matrix.type;
  args.k = matrix.k;
  args.values = matrix.values.data() + static_cast<size_t>(row) * bytes.values;
  args.scales = matrix.scales.data() + static_cast<size_t>(row) * bytes.scales;
  return args;
}

// Where kernels/api/device_matrix.h says that element i of a row lies.
int64_t PlaceOf(DeviceWeightType type, int64_t i) {
  if (type == DeviceWeightType::kFp8Rows) return i;
  const int64_t in_group = i % 32, lane = in_group % 8 / 2, second_word = in_group / 16;
  const int64_t plus_eight = in_group / 8 % 2, odd = in_group % 2;
  return i / 32 * 32 + lane * 8 + second_word * 4 + odd * 2 + (plus_eight == 0 ? 1 : 0);
}

bool IsFp8(DeviceWeightType type) {
  return type == DeviceWeightType::kFp8 || type == DeviceWeightType::kFp8Rows;
}

// `matrix` row first + i · step holds row i of the file's.
void ExpectTheFiles(const Fp8Matrix& file, const DeviceMatrix& matrix, int64_t first,
                    int64_t step) {
  ASSERT_TRUE(IsFp8(matrix.type)) << kernels::DeviceWeightTypeName(matrix.type);
  ASSERT_EQ(matrix.k, file.columns);
  std::vector<float> unpacked(static_cast<size_t>(file.columns));
  for (int64_t row = 0; row < file.rows; ++row) {
    const kernels::DevicePackArgs args = RowOf(matrix, first + row * step);
    float scale = 0;
    std::memcpy(&scale, args.scales, sizeof(scale));
    ASSERT_EQ(scale, file.scales[static_cast<size_t>(row / file.scale_rows)]) << "row " << row;
    const auto* codes = static_cast<const uint8_t*>(args.values);
    kernels::UnpackDeviceRow(args, unpacked.data());
    const size_t bytes = kernels::RowBytesOf(matrix.type, matrix.k).values;
    std::vector<bool> used(bytes);
    for (int64_t i = 0; i < file.columns; ++i) {
      const uint8_t stored = file.codes[static_cast<size_t>(row * file.columns + i)];
      ASSERT_EQ(codes[PlaceOf(matrix.type, i)], stored) << "row " << row << ", " << i;
      ASSERT_EQ(unpacked[static_cast<size_t>(i)], static_cast<float>(file.At(row, i)));
      used[static_cast<size_t>(PlaceOf(matrix.type, i))] = true;
    }
    for (size_t i = 0; i < bytes; ++i) {
      ASSERT_TRUE(used[i] || codes[i] == 0) << "beyond the row";
    }
  }
}

absl::StatusOr<DeviceWeights> Load(const model::Checkpoint& checkpoint, DeviceWeightFormat format,
                                   kernels::Device& device) {
  ASSIGN_OR_RETURN(const auto stream, device.NewStream());
  DeviceWeightsOptions options;
  options.context_tokens = 64;
  options.format = format;
  return LoadDeviceWeights(checkpoint, options, device, *stream, {});
}

class DeviceFp8LayoutTest : public ::testing::TestWithParam<Fp8Layout> {};

TEST_P(DeviceFp8LayoutTest, MatricesAreTheFiles) {
  const Fp8Folder folder(GetParam(), NewSeed());
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(folder.Write()));
  const auto device = kernels::emulated::NewEmulatedDevice(3);
  for (const DeviceWeightFormat format :
       {DeviceWeightFormat::kAsStored, DeviceWeightFormat::kFp8, DeviceWeightFormat::kFp8Rows}) {
    const DeviceWeightType fp8 = format == DeviceWeightFormat::kFp8Rows ? DeviceWeightType::kFp8Rows
                                                                        : DeviceWeightType::kFp8;
    ASSERT_OK_AND_ASSIGN(const DeviceWeights weights, Load(*checkpoint, format, *device));
    const DeviceLayerWeights& w = weights.layers[0];
    // The output matrix is bf16 in the file.
    EXPECT_EQ(weights.output.type, DeviceWeightType::kInt8);
    if (GetParam().shape == Fp8Layout::kBlocks) {
      const DeviceWeightType type =
          format == DeviceWeightFormat::kAsStored ? DeviceWeightType::kInt8 : fp8;
      for (const DeviceMatrix* matrix : {&w.qkv, &w.o, &w.gate_up, &w.down}) {
        EXPECT_EQ(matrix->type, type);
      }
      continue;
    }
    const auto file = [&](const char* module) -> const Fp8Matrix& {
      return folder.matrices.at(module);
    };
    EXPECT_EQ(w.qkv.type, fp8);
    ExpectTheFiles(file("self_attn.q_proj"), w.qkv, 0, 1);
    ExpectTheFiles(file("self_attn.k_proj"), w.qkv, Fp8Folder::kHidden, 1);
    ExpectTheFiles(file("self_attn.v_proj"), w.qkv, Fp8Folder::kHidden + Fp8Folder::kKvRows, 1);
    ExpectTheFiles(file("self_attn.o_proj"), w.o, 0, 1);
    ExpectTheFiles(file("mlp.gate_proj"), w.gate_up, 0, 2);
    ExpectTheFiles(file("mlp.up_proj"), w.gate_up, 1, 2);
    ExpectTheFiles(file("mlp.down_proj"), w.down, 0, 1);
  }
}

// What has to be rounded is rounded once, from element times scale: by row to 1 / 254 of its
// largest weight in int8, to 2^-4 of each weight (2^-10 of the largest, where that is more) in fp8.
TEST_P(DeviceFp8LayoutTest, OthersAreRoundedOnce) {
  const Fp8Folder folder(GetParam(), NewSeed());
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(folder.Write()));
  const auto device = kernels::emulated::NewEmulatedDevice(3);
  const Fp8Matrix& file = folder.matrices.at("mlp.down_proj");
  std::vector<float> unpacked(static_cast<size_t>(file.columns));
  for (const DeviceWeightFormat format :
       {DeviceWeightFormat::kBf16, DeviceWeightFormat::kInt8, DeviceWeightFormat::kAsStored,
        DeviceWeightFormat::kFp8, DeviceWeightFormat::kFp8Rows}) {
    ASSERT_OK_AND_ASSIGN(const DeviceWeights weights, Load(*checkpoint, format, *device));
    const DeviceMatrix& matrix = weights.layers[0].down;
    for (int64_t row = 0; row < file.rows; ++row) {
      double most = 0;
      for (int64_t i = 0; i < file.columns; ++i) most = std::max(most, std::abs(file.At(row, i)));
      kernels::UnpackDeviceRow(RowOf(matrix, row), unpacked.data());
      for (int64_t i = 0; i < file.columns; ++i) {
        const double weight = file.At(row, i);
        double allowed = std::abs(weight) * 0x1p-8;
        if (matrix.type == DeviceWeightType::kInt8) allowed = most / 253;
        if (IsFp8(matrix.type)) {
          allowed = std::max(std::abs(weight) * 0x1.1p-4, most / 448 * 0x1.1p-10);
        }
        ASSERT_NEAR(static_cast<double>(unpacked[static_cast<size_t>(i)]), weight, allowed)
            << "row " << row << ", " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceFp8LayoutTest, ::testing::ValuesIn(testing::Fp8Layouts()),
                         [](const auto& layout) { return layout.param.name; });

TEST(DeviceFp8Weights, OneTensorInBackoffTurnsItsProjectionToInt8) {
  Fp8Folder folder(testing::Fp8Layouts()[0], NewSeed());
  const std::string name = Fp8Folder::NameOf("self_attn.k_proj");
  folder.entries[name].dtype = "BF16";
  folder.entries[name].bytes.assign(Fp8Folder::kKvRows * Fp8Folder::kHidden * 2, '\0');
  folder.entries.erase(name + "_scale");
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(folder.Write()));
  const auto device = kernels::emulated::NewEmulatedDevice(3);
  ASSERT_OK_AND_ASSIGN(const DeviceWeights weights,
                       Load(*checkpoint, DeviceWeightFormat::kAsStored, *device));
  EXPECT_EQ(weights.layers[0].qkv.type, DeviceWeightType::kInt8);
  ExpectTheFiles(folder.matrices.at("self_attn.o_proj"), weights.layers[0].o, 0, 1);
}

TEST(DeviceFp8Weights, AnEmbeddingInFp8BecomesBf16) {
  Fp8Folder folder(testing::Fp8Layouts()[1], NewSeed());
  const std::string name = "model.embed_tokens.weight";
  std::string codes;
  for (int64_t i = 0; i < Fp8Folder::kVocabulary * Fp8Folder::kHidden; ++i) {
    codes.push_back(static_cast<char>(i % 0x7f));
  }
  folder.entries[name] = {"F8_E4M3", {Fp8Folder::kVocabulary, Fp8Folder::kHidden}, codes};
  folder.entries[name + "_scale"] = {"F32", {1}, testing::BytesOfF32({0.25f})};
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(folder.Write()));
  const auto device = kernels::emulated::NewEmulatedDevice(3);
  std::vector<float> unpacked(Fp8Folder::kHidden);
  for (const DeviceWeightFormat format :
       {DeviceWeightFormat::kAsStored, DeviceWeightFormat::kFp8, DeviceWeightFormat::kFp8Rows}) {
    ASSERT_OK_AND_ASSIGN(const DeviceWeights weights, Load(*checkpoint, format, *device));
    ASSERT_EQ(weights.embedding.type, DeviceWeightType::kBf16);
    for (int64_t row = 0; row < Fp8Folder::kVocabulary; ++row) {
      kernels::UnpackDeviceRow(RowOf(weights.embedding, row), unpacked.data());
      for (int64_t i = 0; i < Fp8Folder::kHidden; ++i) {
        const auto code =
            static_cast<uint8_t>(codes[static_cast<size_t>(row * Fp8Folder::kHidden + i)]);
        ASSERT_EQ(unpacked[static_cast<size_t>(i)], 0.25f * kernels::E4m3ToFloat(code));
      }
    }
  }
}

TEST(DeviceFp8Weights, CodesThatAreNoNumbersAreRefused) {
  for (const size_t layout : {0, 4}) {
    Fp8Folder folder(testing::Fp8Layouts()[layout], NewSeed());
    const std::string name = Fp8Folder::NameOf("mlp.gate_proj");
    folder.entries[name].bytes[207 * 192 + 31] = '\xff';
    ASSERT_OK_AND_ASSIGN(const auto checkpoint, model::Checkpoint::Open(folder.Write()));
    const std::string where = name + ": row 207, column 31 is 0xff";
    for (const char* weights : {"auto", "as-stored", "fp8", "int8"}) {
      DeviceEngineOptions options = {.threads = 2, .block_tokens = 16};
      options.weights = weights;
      const absl::Status status = NewEngineOn(DeviceKind::kEmulated, *checkpoint, options).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << weights;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(where)) << weights;
    }
    for (const char* weights : {"auto", "as-stored", "f32", "int4"}) {
      CpuEngineOptions options;
      options.threads = 2;
      options.weights = weights;
      const absl::Status status = NewCpuEngine(*checkpoint, options).status();
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << weights;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(where)) << weights;
    }
  }
}

// Every logprob at every golden position, by position and token.
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
    ASSIGN_OR_RETURN(const SampledToken sampled, ComputeRest(engine, &sequence, chunk));
    if (sampled.top_logprobs.size() != vocab) return absl::InternalError("logprobs missing");
    std::map<TokenId, double> by_token;
    for (const TopLogprob& top : sampled.top_logprobs) by_token[top.token] = top.logprob;
    for (const auto& [token, logprob] : by_token) logprobs.push_back(logprob);
  }
  return logprobs;
}

// Root mean square of the difference to the golden's logprobs, as a share of their spread.
double ShareLost(const std::vector<double>& logprobs, const Golden& golden) {
  const size_t vocab = golden.logits.size() / golden.positions.size();
  std::vector<double> expected;
  for (size_t p = 0; p < golden.positions.size(); ++p) {
    const std::vector<double> some = LogSoftmax(golden.logits.data() + p * vocab, vocab);
    expected.insert(expected.end(), some.begin(), some.end());
  }
  double mean = 0, spread = 0, lost = 0;
  for (double logprob : expected) mean += logprob / static_cast<double>(expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    spread += (expected[i] - mean) * (expected[i] - mean);
    lost += (logprobs[i] - expected[i]) * (logprobs[i] - expected[i]);
  }
  return std::sqrt(lost / spread);
}

class Fp8LogitsTest : public ::testing::TestWithParam<std::tuple<const char*, DeviceKind>> {
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
    DeviceEngineOptions options = {.threads = 1, .block_tokens = 16};
    options.weights = weights;
    return NewEngineOn(kind_, *checkpoint_, options);
  }

  DeviceKind kind_ = DeviceKind::kEmulated;
  Golden golden_;
  std::unique_ptr<model::Checkpoint> checkpoint_;
};

TEST_P(Fp8LogitsTest, MatchTransformersWithTheSameWeights) {
  const bool blocks = std::string(std::get<0>(GetParam())) == "qwen3_fp8_block";
  std::vector<double> as_stored;
  // As for bf16 and int8 of any checkpoint: nothing is lost that fp8 had not lost already. Rounding
  // to another scale of fp8 costs what fp8 costs, and so do activations in fp8 where a device
  // multiplies them.
  for (const auto& [weights, allowed] :
       {std::pair("auto", 0.04), std::pair("as-stored", 0.04),
        std::pair("fp8a16", blocks ? 0.15 : 0.06), std::pair("fp8", 0.2)}) {
    ASSERT_OK_AND_ASSIGN(const auto engine, NewEngine(weights));
    ASSERT_OK_AND_ASSIGN(const std::vector<double> logprobs, Logprobs(engine.get(), golden_, 7));
    if (std::string(weights) == "as-stored") as_stored = logprobs;
    // The same codes and scales, whatever they are called.
    if (std::string(weights) == "fp8a16") {
      EXPECT_EQ(logprobs == as_stored, !blocks);
    }
    const double lost = ShareLost(logprobs, golden_);
    std::cout << weights << ": " << lost << " of the spread\n";
    EXPECT_LT(lost, allowed) << weights;
  }
  CpuEngineOptions options;
  options.threads = 1;
  for (const auto& [weights, allowed] : {std::pair("f32", 0.02), std::pair("as-stored", 0.06)}) {
    options.weights = weights;
    ASSERT_OK_AND_ASSIGN(const auto engine, NewCpuEngine(*checkpoint_, options));
    ASSERT_OK_AND_ASSIGN(const std::vector<double> logprobs, Logprobs(engine.get(), golden_, 7));
    const double lost = ShareLost(logprobs, golden_);
    std::cout << "CPU " << weights << ": " << lost << " of the spread\n";
    EXPECT_LT(lost, allowed) << weights;
  }
}

TEST_P(Fp8LogitsTest, NumericsIdsTellStoredFp8Apart) {
  const bool blocks = std::string(std::get<0>(GetParam())) == "qwen3_fp8_block";
  for (const auto& [weights, name] :
       {std::pair("auto", "-wbf16-"), std::pair("fp8a16", "-wfp8+int8-"),
        std::pair("as-stored", blocks ? "-wstored-int4+int8-" : "-wstored-fp8+int8-")}) {
    ASSERT_OK_AND_ASSIGN(const auto engine, NewEngine(weights));
    EXPECT_THAT(engine->spec().numerics_id, ::testing::HasSubstr(name));
  }
  CpuEngineOptions options;
  options.weights = "as-stored";
  ASSERT_OK_AND_ASSIGN(const auto engine, NewCpuEngine(*checkpoint_, options));
  EXPECT_THAT(engine->spec().numerics_id, ::testing::HasSubstr("-wstored-int8-"));
}

TEST_P(Fp8LogitsTest, BitsDoNotDependOnChunks) {
  golden_.positions.resize(2);
  std::vector<std::vector<double>> answers;
  for (const int64_t chunk : {1000, 1}) {
    ASSERT_OK_AND_ASSIGN(const auto engine, NewEngine("as-stored"));
    ASSERT_OK_AND_ASSIGN(answers.emplace_back(), Logprobs(engine.get(), golden_, chunk));
  }
  EXPECT_EQ(answers[0], answers[1]);
}

INSTANTIATE_TEST_SUITE_P(
    All, Fp8LogitsTest,
    ::testing::Combine(
        ::testing::Values("llama_fp8_channel", "llama_fp8_tensor", "qwen3_fp8_block"),
        ::testing::Values(DeviceKind::kEmulated, DeviceKind::kEmulatedHopper, DeviceKind::kCuda)),
    [](const auto& param) {
      return std::string(std::get<0>(param.param)) + "_" + DeviceKindName(std::get<1>(param.param));
    });

}  // namespace
}  // namespace tandem::engine
