// Goal: fp8 checkpoints of every supported layout give exactly element · scale, to the fp32 bit, by
// an oracle of its own; their rows' codes are the file's; scales are part of the fingerprint; and
// what is missing, misshapen, out of range or of another method is refused by name.
#include "tests/testing/fp8_checkpoint.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/model/checkpoint.h"
#include "common/model/hf_config.h"
#include "common/model/hf_quantization.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

using ::tandem::testing::BytesOfF32;
using ::tandem::testing::Fp8Folder;
using ::tandem::testing::Fp8Layout;
using ::tandem::testing::Fp8Layouts;
using ::tandem::testing::Fp8Matrix;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

const std::pair<const char*, TensorRole> kModules[] = {
    {"self_attn.q_proj", TensorRole::kQ}, {"self_attn.k_proj", TensorRole::kK},
    {"self_attn.v_proj", TensorRole::kV}, {"self_attn.o_proj", TensorRole::kO},
    {"mlp.gate_proj", TensorRole::kGate}, {"mlp.up_proj", TensorRole::kUp},
    {"mlp.down_proj", TensorRole::kDown},
};

uint64_t NewSeed() {
  const uint64_t seed = std::random_device()();
  std::printf("seed %lu\n", static_cast<unsigned long>(seed));
  return seed;
}

void ExpectMatrix(const StoredTensor& tensor, const Fp8Matrix& matrix) {
  ASSERT_EQ(tensor.rows, matrix.rows) << tensor.name;
  ASSERT_EQ(tensor.columns, matrix.columns) << tensor.name;
  std::vector<float> values(static_cast<size_t>(matrix.rows * matrix.columns));
  ReadRows(tensor, 0, matrix.rows, absl::MakeSpan(values));
  for (int64_t row = 0; row < matrix.rows; ++row) {
    for (int64_t column = 0; column < matrix.columns; ++column) {
      // 4 bits times 24: exact in double, rounded once.
      ASSERT_EQ(values[static_cast<size_t>(row * matrix.columns + column)],
                static_cast<float>(matrix.At(row, column)))
          << tensor.name << " at " << row << ", " << column;
    }
  }
}

class Fp8LayoutTest : public ::testing::TestWithParam<Fp8Layout> {};

TEST_P(Fp8LayoutTest, RowsAreElementsTimesScales) {
  const Fp8Folder folder(GetParam(), NewSeed());
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(folder.Write()));
  for (const auto& [module, role] : kModules) {
    const StoredTensor* tensor = checkpoint->Find(role, 0);
    ASSERT_NE(tensor, nullptr) << module;
    EXPECT_EQ(TensorTypeName(tensor->type), "F8_E4M3");
    EXPECT_OK(CheckCodes(*tensor, 0, tensor->rows));
    ExpectMatrix(*tensor, folder.matrices.at(module));
  }
  EXPECT_EQ(checkpoint->Find(TensorRole::kOutput, -1)->type, TensorType::kBF16);
  EXPECT_FALSE(HasFp8Rows(*checkpoint->Find(TensorRole::kOutput, -1)));
}

TEST_P(Fp8LayoutTest, RowsThatHaveOneScaleAreTheFiles) {
  const Fp8Folder folder(GetParam(), NewSeed());
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(folder.Write()));
  for (const auto& [module, role] : kModules) {
    const StoredTensor& tensor = *checkpoint->Find(role, 0);
    const Fp8Matrix& matrix = folder.matrices.at(module);
    ASSERT_EQ(HasFp8Rows(tensor), GetParam().shape != Fp8Layout::kBlocks) << module;
    if (!HasFp8Rows(tensor)) continue;
    for (int64_t row = 0; row < tensor.rows; ++row) {
      const Fp8Row stored = ReadFp8Row(tensor, row);
      EXPECT_EQ(std::vector<uint8_t>(stored.codes, stored.codes + tensor.columns),
                std::vector<uint8_t>(matrix.codes.begin() + row * tensor.columns,
                                     matrix.codes.begin() + (row + 1) * tensor.columns));
      EXPECT_EQ(stored.scale, matrix.scales[static_cast<size_t>(row / matrix.scale_rows)]);
    }
  }
}

TEST_P(Fp8LayoutTest, ScalesAndCodesArePartOfTheFingerprint) {
  Fp8Folder folder(GetParam(), NewSeed());
  ASSERT_OK_AND_ASSIGN(const auto before, Checkpoint::Open(folder.Write()));
  ASSERT_OK_AND_ASSIGN(const auto again, Checkpoint::Open(folder.Write()));
  EXPECT_EQ(before->fingerprint(), again->fingerprint());
  const std::string weight = Fp8Folder::NameOf("mlp.down_proj");
  std::string& scale = folder.entries.at(weight + GetParam().suffix).bytes;
  scale[0] ^= 1;  // the lowest bit of the first scale
  ASSERT_OK_AND_ASSIGN(const auto other_scale, Checkpoint::Open(folder.Write()));
  EXPECT_NE(before->fingerprint(), other_scale->fingerprint());
  scale[0] ^= 1;
  folder.entries.at(weight).bytes[5000] ^= 0x40;
  ASSERT_OK_AND_ASSIGN(const auto other_code, Checkpoint::Open(folder.Write()));
  EXPECT_NE(before->fingerprint(), other_code->fingerprint());
}

INSTANTIATE_TEST_SUITE_P(All, Fp8LayoutTest, ::testing::ValuesIn(Fp8Layouts()),
                         [](const auto& layout) { return layout.param.name; });

TEST(Fp8CheckpointTest, EveryCodeWidensExactly) {
  Fp8Folder folder(Fp8Layouts()[3], NewSeed());
  const std::string name = Fp8Folder::NameOf("mlp.up_proj");
  std::string& codes = folder.entries.at(name).bytes;
  for (int code = 0; code < 256; ++code) codes[static_cast<size_t>(code)] = static_cast<char>(code);
  folder.entries.at(name + "_scale").bytes = BytesOfF32({1.0f});
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(folder.Write()));
  const StoredTensor& tensor = *checkpoint->Find(TensorRole::kUp, 0);
  std::vector<float> values(static_cast<size_t>(2 * tensor.columns));
  ReadRows(tensor, 0, 2, absl::MakeSpan(values));
  for (int code = 0; code < 256; ++code) {
    const float value = values[static_cast<size_t>(code)];
    const double expected = testing::E4m3Oracle(static_cast<uint8_t>(code));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << code;
    } else {
      EXPECT_EQ(static_cast<double>(value), expected) << code;
      EXPECT_EQ(std::signbit(value), code >= 128) << code;
    }
  }
  // Opening does not read weights; who reads them asks.
  EXPECT_THAT(CheckCodes(tensor, 0, tensor.rows),
              StatusIs(kInvalid, AllOf(HasSubstr(name), HasSubstr("row 0, column 127 is 0x7f"))));
  EXPECT_THAT(CheckCodes(tensor, 1, 1), StatusIs(kInvalid, HasSubstr("row 1, column 63 is 0xff")));
  EXPECT_OK(CheckCodes(tensor, 2, tensor.rows - 2));
}

TEST(Fp8CheckpointTest, ModelOptsOwnFileSaysItToo) {
  Fp8Folder folder(Fp8Layouts()[6], NewSeed());
  folder.config.erase("quantization_config");
  EXPECT_THAT(Checkpoint::Open(folder.Write()).status(),
              StatusIs(kInvalid, AllOf(HasSubstr("is F8_E4M3, but neither"),
                                       HasSubstr("hf_quant_config.json"))));
  folder.WriteFile("hf_quant_config.json", R"({"producer": {"name": "modelopt"}, "quantization":
      {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}})");
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(folder.Write()));
  ExpectMatrix(*checkpoint->Find(TensorRole::kDown, 0), folder.matrices.at("mlp.down_proj"));
  for (const auto& [text, message] :
       {std::pair(R"({"quantization": {"quant_algo": "NVFP4"}})", "\"quant_algo\" is \"NVFP4\""),
        std::pair(R"({"quantization": 4})", "key \"quantization\" is not an object"),
        std::pair("[]", "hf_quant_config.json")}) {
    folder.WriteFile("hf_quant_config.json", text);
    const absl::Status status = Checkpoint::Open(folder.Write()).status();
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("hf_quant_config.json"), HasSubstr(message)));
  }
}

// Groups of one configuration may differ, and some modules may be left alone.
TEST(Fp8CheckpointTest, GroupsMayDiffer) {
  Fp8Folder folder(Fp8Layouts()[0], NewSeed());  // by channel
  Fp8Folder single(Fp8Layouts()[1], NewSeed());  // by tensor
  auto& groups = folder.config["quantization_config"]["config_groups"];
  groups["group_1"] = single.config["quantization_config"]["config_groups"]["group_0"];
  const std::string name = Fp8Folder::NameOf("mlp.down_proj");
  folder.entries[name] = single.entries.at(name);
  folder.entries[name + "_scale"] = single.entries.at(name + "_scale");
  const std::string left = Fp8Folder::NameOf("mlp.up_proj");
  folder.entries[left].dtype = "BF16";
  folder.entries[left].bytes.assign(Fp8Folder::kFfn * Fp8Folder::kHidden * 2, '\0');
  folder.entries.erase(left + "_scale");
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(folder.Write()));
  ExpectMatrix(*checkpoint->Find(TensorRole::kDown, 0), single.matrices.at("mlp.down_proj"));
  ExpectMatrix(*checkpoint->Find(TensorRole::kGate, 0), folder.matrices.at("mlp.gate_proj"));
  EXPECT_EQ(checkpoint->Find(TensorRole::kUp, 0)->type, TensorType::kBF16);
}

const std::string kUp = Fp8Folder::NameOf("mlp.up_proj");

struct Damage {
  const char* name;
  size_t layout;  // in Fp8Layouts
  std::function<void(Fp8Folder&)> apply;
  absl::StatusCode code;
  std::vector<std::string> messages;
};

void SetScale(Fp8Folder& folder, float value) {
  std::string& bytes = folder.entries.at(kUp + "_scale").bytes;
  bytes.replace(bytes.size() - 4, 4, BytesOfF32({value}));
}

class Fp8DamageTest : public ::testing::TestWithParam<Damage> {};

TEST_P(Fp8DamageTest, IsNamed) {
  Fp8Folder folder(Fp8Layouts()[GetParam().layout], NewSeed());
  ASSERT_OK(Checkpoint::Open(folder.Write()).status());
  GetParam().apply(folder);
  const absl::Status status = Checkpoint::Open(folder.Write()).status();
  EXPECT_EQ(status.code(), GetParam().code) << status;
  for (const std::string& message : GetParam().messages) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

Damage BadScale(const char* name, float value, const char* text) {
  return {name,
          5,
          [value](Fp8Folder& f) { SetScale(f, value); },
          kInvalid,
          {kUp + "_scale", "scale 207 of 208 is ", text, "above 0"}};
}

Damage Reshaped(const char* name, size_t layout, std::vector<int64_t> shape,
                std::vector<std::string> messages) {
  return {name, layout,
          [shape](Fp8Folder& f) {
            const std::string suffix = f.entries.count(kUp + "_scale") ? "_scale" : "_scale_inv";
            auto& entry = f.entries.at(kUp + suffix);
            size_t count = 1;
            for (int64_t dimension : shape) count *= static_cast<size_t>(dimension);
            entry = {"F32", shape, BytesOfF32(std::vector<float>(count, 1.0f))};
          },
          kInvalid, std::move(messages)};
}

Damage Configured(const char* name, size_t layout, const char* pointer, const char* value,
                  absl::StatusCode code, std::vector<std::string> messages) {
  return {name, layout,
          [=](Fp8Folder& f) {
            f.config["quantization_config"][nlohmann::json::json_pointer(pointer)] =
                nlohmann::json::parse(value);
          },
          code, std::move(messages)};
}

const Damage kScaleDamages[] = {
    {"MissingScale",
     3,
     [](Fp8Folder& f) { f.entries.erase(kUp + "_scale"); },
     kInvalid,
     {kUp + " is F8_E4M3 without a scale", "up_proj.weight_scale or "}},
    {"MissingInverseScale",
     4,
     [](Fp8Folder& f) { f.entries.erase(kUp + "_scale_inv"); },
     kInvalid,
     {kUp + " is F8_E4M3 without a scale", "up_proj.weight_scale_inv"}},
    {"TwoScales",
     3,
     [](Fp8Folder& f) { f.entries[kUp + "_scale_inv"] = f.entries.at(kUp + "_scale"); },
     kInvalid,
     {kUp + " has two scales"}},
    {"ScaleOfNothing",
     3,
     [](Fp8Folder& f) { f.entries["model.layers.7.weight_scale"] = f.entries.at(kUp + "_scale"); },
     kInvalid,
     {"model.layers.7.weight_scale", "which is missing"}},
    {"ScaleOfBf16",
     3,
     [](Fp8Folder& f) { f.entries["lm_head.weight_scale"] = f.entries.at(kUp + "_scale"); },
     kInvalid,
     {"lm_head.weight_scale is the scale of lm_head.weight, which is BF16; expected F8_E4M3"}},
    {"ScaleIsFp8",
     3,
     [](Fp8Folder& f) {
       f.entries[kUp + "_scale"] = {"F8_E4M3", {}, "a"};
     },
     kInvalid,
     {kUp + "_scale"}},
    BadScale("ZeroScale", 0.0f, "is 0,"),
    BadScale("NegativeScale", -0.5f, "is -0.5,"),
    BadScale("InfiniteScale", std::numeric_limits<float>::infinity(), "is inf,"),
    BadScale("ScaleIsNoNumber", std::numeric_limits<float>::quiet_NaN(), "nan,"),
    BadScale("ScaleOverflows", 1e36f, "is 1e+36,"),
    Reshaped("TwoForATensor", 1, {2}, {kUp + "_scale", "has shape [2]", "[] or [1]"}),
    Reshaped("RowsForATensor", 6, {208, 1}, {"has shape [208, 1]", "method modelopt expects []"}),
    Reshaped("TensorForRows", 5, {}, {"has shape []", "fbgemm_fp8 expects [208, 1] or [208]"}),
    Reshaped("TransposedRows", 5, {1, 208}, {"has shape [1, 208]", "[208, 1] or [208]"}),
    Reshaped("ThreeDimensions", 5, {208, 1, 1}, {"has shape [208, 1, 1]"}),
    Reshaped("TooFewBlocks", 4, {1, 2}, {"has shape [1, 2]", "[2, 2] for blocks of 128 x 128"}),
    Reshaped("RowsForBlocks", 4, {208, 1}, {"has shape [208, 1]", "[2, 2] for blocks"}),
    {"VectorInFp8",
     3,
     [](Fp8Folder& f) {
       f.entries["model.norm.weight"] = {"F8_E4M3", {192}, std::string(192, '8')};
     },
     kInvalid,
     {"model.norm.weight is F8_E4M3 of shape [192]", "only matrices"}},
    {"E5M2",
     3,
     [](Fp8Folder& f) { f.entries[kUp].dtype = "F8_E5M2"; },
     kUnimplemented,
     {kUp, "dtype \"F8_E5M2\"", "F8_E4M3 are supported"}},
    {"ForeignTensor",
     3,
     [](Fp8Folder& f) { f.entries[kUp + "_zero_point"] = f.entries.at(kUp + "_scale"); },
     kUnimplemented,
     {kUp + "_zero_point", "no place"}},
    {"WeightOfAnotherShape",
     3,
     [](Fp8Folder& f) {
       f.entries[kUp].shape = {Fp8Folder::kHidden, Fp8Folder::kFfn};
     },
     kInvalid,
     {kUp, "expected shape [208, 192], found [192, 208]"}},
    {"NoConfiguration",
     3,
     [](Fp8Folder& f) { f.config.erase("quantization_config"); },
     kInvalid,
     {"is F8_E4M3, but neither"}},
};

const char kWeights[] = "/config_groups/group_0/weights";
const Damage kConfigDamages[] = {
    Configured("OtherMethod", 3, "/quant_method", R"("gptq")", kUnimplemented,
               {"config.json", "quant_method \"gptq\" is not supported", "fbgemm_fp8"}),
    Configured("NoMethod", 3, "/quant_method", "null", kUnimplemented, {"quant_method \"\""}),
    Configured("MethodIsANumber", 3, "/quant_method", "8", kInvalid, {"\"quant_method\""}),
    Configured("PackedFourBits", 0, "/format", R"("pack-quantized")", kUnimplemented,
               {"\"format\" is \"pack-quantized\"", "float-quantized"}),
    Configured("MixedWithPacked", 0, "", R"({"quant_method": "compressed-tensors",
               "format": "mixed-precision", "config_groups": {"a": {"format": "nvfp4-pack-quantized",
               "weights": {"num_bits": 4, "type": "float"}}}})",
               kUnimplemented, {"nvfp4"}),
    Configured("FourBits", 0, "/config_groups/group_0/weights/num_bits", "4", kUnimplemented,
               {"weights with 4 bits of type float", "8 bits"}),
    Configured("Integers", 0, "/config_groups/group_0/weights/type", R"("int")", kUnimplemented,
               {"8 bits of type int"}),
    Configured("Asymmetric", 0, "/config_groups/group_0/weights/symmetric", "false", kUnimplemented,
               {"\"symmetric\" is false"}),
    Configured("ByGroup", 0, "/config_groups/group_0/weights/strategy", R"("group")",
               kUnimplemented, {"\"strategy\" is \"group\"", "channel"}),
    Configured("BlockWithoutSize", 0, "/config_groups/group_0/weights/strategy", R"("block")",
               kInvalid, {"\"block_structure\" is missing"}),
    Configured("GroupsMissing", 0, "/config_groups", "null", kInvalid, {"\"config_groups\""}),
    Configured("GroupIsAList", 0, "/config_groups/group_0", "[]", kInvalid, {"group \"group_0\""}),
    Configured("WeightsAreText", 0, kWeights, R"("fp8")", kInvalid, {"group \"group_0\""}),
    Configured("NoGroup", 0, "/config_groups", "{}", kInvalid, {"expects no fp8 weights"}),
    Configured("TwoBlockSizes", 2, "/config_groups/more", R"({"weights": {"num_bits": 8,
               "type": "float", "strategy": "block", "block_structure": "64x64"}})",
               kUnimplemented, {"64 x 64", "128 x 128"}),
    Configured("Sparse", 0, "/sparsity_config", R"({"format": "sparse-24-bitmask"})",
               kUnimplemented, {"sparse-24-bitmask"}),
    Configured("Transformed", 0, "/transform_config", R"({"config_groups": {"u": {}}})",
               kUnimplemented, {"transform_config"}),
    Configured("OtherFormat", 3, "/fmt", R"("e5m2")", kUnimplemented, {"\"fmt\" is \"e5m2\""}),
    Configured("BlockOfThree", 4, "/weight_block_size", "[1, 2, 3]", kInvalid, {"two positive"}),
    Configured("BlockOfNothing", 4, "/weight_block_size", "[0, 128]", kInvalid, {"0 x 128"}),
    Configured("HugeBlock", 4, "/weight_block_size", "[18446744073709551615, 128]", kInvalid,
               {"blocks of -1 x 128"}),
    Configured("BlockIsText", 4, "/weight_block_size", R"("128")", kInvalid, {"two positive"}),
    Configured("OtherAlgorithm", 6, "/quant_algo", R"("W4A8_AWQ")", kUnimplemented,
               {"\"quant_algo\" is \"W4A8_AWQ\"", "FP8 and"}),
    Configured("NotAnObject", 3, "", "[]", kInvalid, {"\"quantization_config\" is a array"}),
};

INSTANTIATE_TEST_SUITE_P(Scales, Fp8DamageTest, ::testing::ValuesIn(kScaleDamages),
                         [](const auto& damage) { return std::string(damage.param.name); });
INSTANTIATE_TEST_SUITE_P(Configurations, Fp8DamageTest, ::testing::ValuesIn(kConfigDamages),
                         [](const auto& damage) { return std::string(damage.param.name); });

TEST(Fp8CheckpointTest, OlderSpellingsAreRead) {
  Fp8Folder folder(Fp8Layouts()[2], NewSeed());
  folder.config["quantization_config"]["config_groups"]["group_0"]["weights"]["block_structure"] =
      "128x128";
  folder.config["compression_config"] = folder.config["quantization_config"];
  folder.config.erase("quantization_config");
  ASSERT_OK_AND_ASSIGN(const auto checkpoint, Checkpoint::Open(folder.Write()));
  ExpectMatrix(*checkpoint->Find(TensorRole::kDown, 0), folder.matrices.at("mlp.down_proj"));
}

}  // namespace
}  // namespace tandem::model
