// Goal: a description of an architecture that lacks what a loader needs is refused before any
// checkpoint is read, and an unknown architecture's error lists the known ones.
#include "common/model/architecture/architecture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "common/model/architecture/registry.h"
#include "common/model/hf_config.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

Architecture Valid() {
  return {.name = "some-model",
          .spelling = {"SomeModelForCausalLM", "some-model"},
          .activation = Activation::kSiluMul};
}

TEST(ArchitectureTest, TheLeastIsANameASpellingAndAnActivation) {
  EXPECT_OK(ValidateArchitecture(Valid()));
}

TEST(ArchitectureTest, IncompleteDescriptionsAreRefused) {
  const struct {
    const char* message;
    std::function<void(Architecture&)> damage;
  } kCases[] = {
      {"field name", [](Architecture& a) { a.name = ""; }},
      {"field name", [](Architecture& a) { a.name = "Some Model"; }},
      {"field spelling is empty", [](Architecture& a) { a.spelling = {}; }},
      {"field activation is not set", [](Architecture& a) { a.activation.reset(); }},
      {"head_dim", [](Architecture& a) { a.head_dim = -1; }},
      {"RoPE bases", [](Architecture& a) { a.rope_theta = 0; }},
      {"windowed_rope_theta is set", [](Architecture& a) { a.windowed_rope_theta = 10000.0; }},
      {"field keys.ffn_size is empty", [](Architecture& a) { a.keys.ffn_size.hugging_face = ""; }},
      {"field keys.num_heads is empty", [](Architecture& a) { a.keys.num_heads.gguf = ""; }},
      {"attention_scalar above 0",
       [](Architecture& a) {
         a.keys.attention_scalar = {"scalar", ""};
       }},
      {"windows.tokens must be above 0",
       [](Architecture& a) { a.windows.hugging_face = WindowPattern::kEveryLayer; }},
      {"kDeepLayers",
       [](Architecture& a) {
         a.windows = {.hugging_face = WindowPattern::kDeepLayers, .tokens = 1};
       }},
      {"windows.period above 0",
       [](Architecture& a) { a.windows.gguf = WindowPattern::kPeriodic; }},
      {"the tensor of role \"q\" has no name",
       [](Architecture& a) {
         a.tensor_names = {{TensorRole::kQ, {"q_proj.weight", ""}}};
       }},
      // Sandwich norms make one Llama name ambiguous: the description must resolve it.
      {"tensor post_attention_layernorm.weight is both \"post-attention norm\" and \"FFN norm\"",
       [](Architecture& a) { a.norms = LayerNorms::kSandwich; }},
  };
  for (const auto& [message, damage] : kCases) {
    Architecture architecture = Valid();
    damage(architecture);
    EXPECT_THAT(
        ArchitectureRegistry::Create({architecture}).status(),
        StatusIs(kInvalid, AllOf(HasSubstr("description of architecture"), HasSubstr(message))));
  }
}

TEST(ArchitectureTest, NamesAreUniqueInEachSpelling) {
  Architecture other = Valid();
  other.name = "other";
  EXPECT_THAT(ArchitectureRegistry::Create({Valid(), other}).status(),
              StatusIs(kInvalid, HasSubstr("SomeModelForCausalLM")));
  other.spelling = {"", "some-model"};
  EXPECT_THAT(ArchitectureRegistry::Create({Valid(), other}).status(),
              StatusIs(kInvalid, HasSubstr("the GGUF spelling \"some-model\"")));
  other.spelling = {"", "other"};
  EXPECT_OK(ArchitectureRegistry::Create({Valid(), other}).status());
  other.name = "some-model";
  EXPECT_THAT(ArchitectureRegistry::Create({Valid(), other}).status(),
              StatusIs(kInvalid, HasSubstr("the name \"some-model\"")));
}

TEST(ArchitectureTest, BuiltInOnesAreFoundInEitherSpelling) {
  const ArchitectureRegistry& registry = ArchitectureRegistry::BuiltIn();
  for (const Architecture& architecture : registry.architectures()) {
    EXPECT_EQ(registry.FindByName(architecture.name), &architecture);
    for (const CheckpointFormat format :
         {CheckpointFormat::kHuggingFace, CheckpointFormat::kGguf}) {
      const absl::string_view spelling = architecture.spelling.in(format);
      if (spelling.empty()) continue;
      ASSERT_OK_AND_ASSIGN(const Architecture* found, registry.Find(format, spelling));
      EXPECT_EQ(found, &architecture);
    }
  }
  EXPECT_EQ(registry.FindByName("mamba"), nullptr);
}

TEST(ArchitectureTest, AnUnknownOnesErrorListsTheKnown) {
  const ArchitectureRegistry& registry = ArchitectureRegistry::BuiltIn();
  const absl::Status gguf = registry.Find(CheckpointFormat::kGguf, "mamba").status();
  EXPECT_THAT(gguf, StatusIs(kUnimplemented,
                             AllOf(HasSubstr("architecture \"mamba\" is not supported"),
                                   HasSubstr("supported in GGUF: "), HasSubstr("gemma3, "))));
  const absl::Status hugging_face =
      ParseHuggingFaceConfig(R"({"architectures": ["MambaForCausalLM"]})").status();
  EXPECT_THAT(hugging_face,
              StatusIs(kUnimplemented, AllOf(HasSubstr("\"MambaForCausalLM\" is not supported"),
                                             HasSubstr("supported in config.json: "),
                                             HasSubstr("Gemma3ForCausalLM, "))));
  for (const Architecture& architecture : registry.architectures()) {
    EXPECT_THAT(std::string(gguf.message()), HasSubstr(architecture.spelling.gguf));
    EXPECT_THAT(std::string(hugging_face.message()), HasSubstr(architecture.spelling.hugging_face));
  }
}

TEST(ArchitectureTest, TensorNamesInBothFormats) {
  const Architecture* gemma = ArchitectureRegistry::BuiltIn().FindByName("gemma3");
  ASSERT_NE(gemma, nullptr);
  const auto name = [&](CheckpointFormat format, TensorRole role, int layer) {
    return TensorNameOf(*gemma, format, role, layer);
  };
  EXPECT_EQ(name(CheckpointFormat::kHuggingFace, TensorRole::kFfnNorm, 3),
            "model.layers.3.pre_feedforward_layernorm.weight");
  EXPECT_EQ(name(CheckpointFormat::kGguf, TensorRole::kFfnNorm, 3), "blk.3.ffn_norm.weight");
  EXPECT_EQ(name(CheckpointFormat::kHuggingFace, TensorRole::kOutput, -1), "lm_head.weight");
}

}  // namespace
}  // namespace tandem::model
