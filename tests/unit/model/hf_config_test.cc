// Goal: config.json means the same in transformers 4's and 5's spellings, and what it asks for that
// is not supported is refused by name.
#include "common/model/hf_config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "nlohmann/json.hpp"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace tandem::model {
namespace {

using nlohmann::json;
using ::tandem::testing::GoldenPath;
using ::tandem::testing::ReadFileOrEmpty;
using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

// The config.json of a tiny checkpoint, to be varied.
json Tiny(const std::string& name) {
  return json::parse(ReadFileOrEmpty(GoldenPath("tiny/" + name + "/config.json")), nullptr, false);
}

ModelConfig Parse(const json& config) {
  const absl::StatusOr<ModelConfig> parsed = ParseHuggingFaceConfig(config.dump());
  EXPECT_OK(parsed);
  return parsed.ok() ? *parsed : ModelConfig();
}

TEST(HfConfigTest, Llama3ScalingInBothSpellings) {
  json config = Tiny("llama3");
  const ModelConfig modern = Parse(config);
  ASSERT_EQ(modern.layers.size(), 2u);
  const LayerConfig& layer = modern.layers[0];
  EXPECT_EQ(layer.rope_theta, 500000.0);
  EXPECT_EQ(layer.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(layer.rope_scaling.factor, 8.0);
  EXPECT_EQ(layer.rope_scaling.original_context, 64);

  config["rope_scaling"] = config["rope_parameters"];
  config["rope_scaling"].erase("rope_theta");
  config["rope_theta"] = 500000.0;
  config.erase("rope_parameters");
  const ModelConfig old = Parse(config);
  EXPECT_EQ(old.layers[1].rope_theta, 500000.0);
  EXPECT_EQ(old.layers[1].rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(old.layers[1].rope_scaling.original_context, 64);
}

TEST(HfConfigTest, GemmaLayersInBothSpellings) {
  json config = Tiny("gemma3");
  const auto check = [](const ModelConfig& parsed) {
    ASSERT_EQ(parsed.layers.size(), 7u);
    for (size_t i = 0; i < 7; ++i) {
      const LayerConfig& layer = parsed.layers[i];
      EXPECT_EQ(layer.sliding_window, i == 5 ? 0 : 32) << i;
      EXPECT_EQ(layer.rope_theta, i == 5 ? 1000000.0 : 10000.0) << i;
      EXPECT_EQ(layer.rope_scaling.kind,
                i == 5 ? RopeScaling::Kind::kLinear : RopeScaling::Kind::kNone)
          << i;
    }
    EXPECT_EQ(parsed.attention_scale, 0.25f);
    EXPECT_EQ(parsed.embedding_scale, std::sqrt(32.0f));
    EXPECT_TRUE(parsed.qk_norm && parsed.sandwich_norms && parsed.tied_embeddings);
    EXPECT_EQ(parsed.activation, Activation::kGeluTanhMul);
  };
  check(Parse(config));
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  config["rope_theta"] = 1000000.0;
  config["rope_local_base_freq"] = 10000.0;
  config["sliding_window_pattern"] = 6;
  for (const char* key : {"rope_parameters", "layer_types", "_sliding_window_pattern"}) {
    config.erase(key);
  }
  check(Parse(config));
}

TEST(HfConfigTest, WindowsFollowTheReference) {
  EXPECT_EQ(Parse(Tiny("mistral")).layers[1].sliding_window, 24);
  json mistral = Tiny("mistral");
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(Parse(mistral).layers[0].sliding_window, 0);
  mistral.erase("sliding_window");
  EXPECT_EQ(Parse(mistral).layers[0].sliding_window, 4096);

  json qwen = Tiny("qwen2");
  qwen.erase("layer_types");
  qwen["sliding_window"] = 16;
  EXPECT_EQ(Parse(qwen).layers[1].sliding_window, 0);
  qwen["use_sliding_window"] = true;
  qwen["max_window_layers"] = 1;
  EXPECT_EQ(Parse(qwen).layers[0].sliding_window, 0);
  EXPECT_EQ(Parse(qwen).layers[1].sliding_window, 16);
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  EXPECT_EQ(Parse(qwen).layers[0].sliding_window, 16);
  EXPECT_EQ(Parse(qwen).layers[1].sliding_window, 0);
}

TEST(HfConfigTest, BiasesAndNorms) {
  const ModelConfig qwen2 = Parse(Tiny("qwen2"));
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.attention_output_bias);
  const ModelConfig qwen3 = Parse(Tiny("qwen3"));
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_EQ(qwen3.head_dim, 32);
  json llama = Tiny("llama");
  llama["attention_bias"] = true;
  EXPECT_TRUE(Parse(llama).attention_bias && Parse(llama).attention_output_bias);
  llama.erase("num_key_value_heads");
  EXPECT_EQ(Parse(llama).num_kv_heads, 4);
}

TEST(HfConfigTest, YarnAttentionFactor) {
  json config = Tiny("qwen3_yarn");
  EXPECT_DOUBLE_EQ(Parse(config).layers[0].rope_scaling.attention_factor, 0.1 * std::log(4.0) + 1);
  config["rope_parameters"]["attention_factor"] = 1.5;
  EXPECT_EQ(Parse(config).layers[0].rope_scaling.attention_factor, 1.5);
}

TEST(HfConfigTest, YarnExtendsTheContext) {
  // As Qwen's model cards say to write it: 32,768 positions, extended to 131,072.
  json config = Tiny("qwen3_yarn");
  config["max_position_embeddings"] = 32768;
  config.erase("rope_parameters");
  config["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(Parse(config).context_tokens, 131072);
  // max_position_embeddings may tell some of it already, or all.
  config["max_position_embeddings"] = 40960;
  EXPECT_EQ(Parse(config).context_tokens, 131072);
  config["max_position_embeddings"] = 163840;
  EXPECT_EQ(Parse(config).context_tokens, 163840);
  // Without an original one, max_position_embeddings is it.
  config["max_position_embeddings"] = 8192;
  config["rope_scaling"].erase("original_max_position_embeddings");
  EXPECT_EQ(Parse(config).context_tokens, 32768);
  EXPECT_EQ(Parse(config).layers[0].rope_scaling.original_context, 8192);
  config["rope_scaling"]["type"] = "linear";
  EXPECT_EQ(Parse(config).context_tokens, 8192);
  config["rope_scaling"] = {{"type", "yarn"}, {"factor", 1e300}};
  EXPECT_THAT(ParseHuggingFaceConfig(config.dump()).status(),
              StatusIs(kInvalid, HasSubstr("the context length")));
}

// transformers 5 writes rope_parameters; model cards say to add rope_scaling.
TEST(HfConfigTest, BothSpellingsAtOnceMustMeanTheSame) {
  const auto status = [](const json& config) {
    return ParseHuggingFaceConfig(config.dump()).status();
  };
  const auto differs = StatusIs(
      kInvalid, AllOf(HasSubstr("\"rope_scaling\""), HasSubstr("\"rope_parameters\" differ")));
  json config = Tiny("llama3");
  config["rope_scaling"] = config["rope_parameters"];
  EXPECT_EQ(Parse(config).layers[0].rope_scaling.factor, 8.0);
  config["rope_scaling"].erase("rope_theta");
  EXPECT_EQ(Parse(config).layers[0].rope_theta, 500000.0);
  config["rope_theta"] = 10000.0;
  EXPECT_THAT(status(config), differs) << "transformers 5 takes this theta";
  config.erase("rope_theta");
  for (const json& nothing : {json(nullptr), json::object()}) {
    config["rope_scaling"] = nothing;
    EXPECT_EQ(Parse(config).layers[0].rope_scaling.kind, RopeScaling::Kind::kLlama3);
  }
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 2.0}};
  EXPECT_THAT(status(config), differs);
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 500000.0}};
  EXPECT_THAT(status(config), differs);
  config["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_THAT(status(config), differs);
  config.erase("rope_parameters");
  EXPECT_EQ(Parse(config).layers[0].rope_scaling.kind, RopeScaling::Kind::kYarn);

  // Gemma's rope_scaling is that of its global layers.
  json gemma = Tiny("gemma3");
  gemma["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_EQ(Parse(gemma).layers[5].rope_scaling.factor, 8.0);
  gemma["rope_scaling"]["factor"] = 4.0;
  EXPECT_THAT(status(gemma), differs);
  gemma["rope_scaling"] = gemma["rope_parameters"];
  EXPECT_EQ(Parse(gemma).layers[5].rope_scaling.factor, 8.0);
}

// A member set to a value, and the error that must follow.
struct Change {
  const char* base;
  const char* key;
  json value;
  absl::StatusCode code;
  const char* message;
};

TEST(HfConfigTest, UnsupportedAndDamagedIsNamed) {
  const Change changes[] = {
      {"llama", "architectures", json::array({"MixtralForCausalLM"}), kUnimplemented,
       "MixtralForCausalLM"},
      {"llama", "architectures", "LlamaForCausalLM", kInvalid, "architectures"},
      {"llama", "architectures", json::array(), kInvalid, "architectures"},
      {"llama", "hidden_act", "relu", kUnimplemented, "activation \"relu\"; silu"},
      {"llama", "mlp_bias", true, kUnimplemented, "mlp_bias"},
      {"llama", "quantization_config", json::object(), kUnimplemented, "quantization_config"},
      {"llama", "partial_rotary_factor", 0.5, kUnimplemented, "partial_rotary_factor"},
      {"llama", "rope_parameters", {{"rope_type", "longrope"}}, kUnimplemented, "longrope"},
      {"llama", "rope_parameters", {{"rope_type", "linear"}}, kInvalid, "factor"},
      {"llama", "rope_parameters", {{"rope_type", "linear"}, {"factor", 0}}, kInvalid, "factor"},
      {"llama", "rope_parameters", 5, kInvalid, "rope parameters are a number"},
      {"llama3",
       "rope_parameters",
       {{"rope_type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}},
       kInvalid,
       "high_freq_factor - low_freq_factor is 0"},
      {"llama", "hidden_size", nullptr, kInvalid, "key \"hidden_size\" is missing"},
      {"llama", "hidden_size", "64", kInvalid, "key \"hidden_size\" is a string"},
      {"llama", "hidden_size", -1, kInvalid, "key \"hidden_size\" is -1"},
      {"llama", "hidden_size", 1e30, kInvalid, "key \"hidden_size\" is a number"},
      {"llama", "num_hidden_layers", 2000000000, kInvalid, "at most 1024"},
      {"llama", "num_hidden_layers", 0, kInvalid, "the number of layers is 0"},
      {"llama", "num_attention_heads", 0, kInvalid, "the number of heads is 0"},
      {"llama", "num_key_value_heads", 3, kInvalid, "4 heads cannot share 3 KV heads"},
      {"llama", "head_dim", 24, kUnimplemented, "head_dim 24"},
      {"llama", "rms_norm_eps", 0, kInvalid, "epsilon"},
      {"gemma3", "final_logit_softcapping", 30.0, kUnimplemented, "final_logit_softcapping"},
      {"gemma3", "attn_logit_softcapping", 50.0, kUnimplemented, "attn_logit_softcapping"},
      {"gemma3", "use_bidirectional_attention", true, kUnimplemented, "bidirectional"},
      {"gemma3", "query_pre_attn_scalar", -4, kInvalid, "attention scale"},
      {"gemma3", "layer_types", json::array({"full_attention"}), kInvalid, "layer_types"},
      {"gemma3", "layer_types", json::array({1, 2, 3, 4, 5, 6, 7}), kUnimplemented, "layer type"},
      {"qwen3_yarn",
       "rope_parameters",
       {{"rope_type", "yarn"}, {"factor", 4}, {"truncate", false}},
       kUnimplemented,
       "truncate"},
  };
  for (const Change& change : changes) {
    json config = Tiny(change.base);
    config[change.key] = change.value;
    EXPECT_THAT(ParseHuggingFaceConfig(config.dump()).status(),
                StatusIs(change.code, HasSubstr(change.message)))
        << change.base << " " << change.key;
  }
  EXPECT_THAT(ParseHuggingFaceConfig("{").status(),
              StatusIs(kInvalid, HasSubstr("not a JSON object")));
}

}  // namespace
}  // namespace tandem::model
