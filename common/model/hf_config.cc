#include "common/model/hf_config.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/hf_quantization.h"
#include "common/model/json_reading.h"
#include "common/model/loaded_checkpoint.h"

namespace tandem::model {
namespace {

using nlohmann::json;

// transformers' defaults for keys that a config.json may leave out.
constexpr double kDefaultEps = 1e-6;
constexpr double kDefaultTheta = 10000.0;
constexpr double kGemmaGlobalTheta = 1000000.0;
constexpr int32_t kGemmaPattern = 6;
constexpr int32_t kMistralWindow = 4096;
constexpr int32_t kQwenWindow = 4096;
constexpr int32_t kQwenWindowLayers = 28;
constexpr int32_t kGemmaWindow = 4096;

struct Family {
  absl::string_view class_name;
  absl::string_view architecture;
};
constexpr Family kFamilies[] = {
    {"LlamaForCausalLM", "llama"}, {"MistralForCausalLM", "mistral"}, {"Qwen2ForCausalLM", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3"}, {"Gemma3ForCausalLM", "gemma3"},
};

absl::StatusOr<std::string> Architecture(const json& config) {
  const json* classes = JsonMembers(config).Find("architectures");
  if (classes == nullptr || !classes->is_array() || classes->size() != 1 ||
      !(*classes)[0].is_string()) {
    return absl::InvalidArgumentError("key \"architectures\" is not an array of one class name");
  }
  const std::string& name = (*classes)[0].get_ref<const std::string&>();
  for (const Family& family : kFamilies) {
    if (name == family.class_name) return std::string(family.architecture);
  }
  return absl::UnimplementedError(
      absl::StrCat("architecture \"", name,
                   "\" is not supported; LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, "
                   "Qwen3ForCausalLM and Gemma3ForCausalLM are"));
}

// Refuses features that would change the answer if they were passed over.
absl::Status RefuseUnsupported(const JsonMembers& members) {
  for (const absl::string_view key : {"attn_logit_softcapping", "final_logit_softcapping"}) {
    if (members.Find(key) != nullptr) {
      return absl::UnimplementedError(absl::StrCat("key \"", key, "\" is not supported"));
    }
  }
  for (const absl::string_view key : {"mlp_bias", "use_bidirectional_attention"}) {
    ASSIGN_OR_RETURN(const std::optional<bool> value, members.Bool(key));
    if (value.value_or(false)) {
      return absl::UnimplementedError(absl::StrCat("key \"", key, "\" = true is not supported"));
    }
  }
  ASSIGN_OR_RETURN(const auto rotated, members.Number("partial_rotary_factor"));
  if (rotated.value_or(1.0) != 1.0) {
    return absl::UnimplementedError(
        absl::StrCat("key \"partial_rotary_factor\" = ", *rotated, "; only 1 is supported"));
  }
  return absl::OkStatus();
}

absl::Status ReadYarn(const JsonMembers& rope, int32_t context_tokens, RopeScaling& scaling) {
  ASSIGN_OR_RETURN(const auto truncate, rope.Bool("truncate"));
  if (!truncate.value_or(true)) {
    return absl::UnimplementedError("yarn rope scaling with \"truncate\" = false");
  }
  ASSIGN_OR_RETURN(const auto factor, rope.Number("factor"));
  scaling.factor = factor.value_or(static_cast<double>(context_tokens) /
                                   static_cast<double>(scaling.original_context));
  ASSIGN_OR_RETURN(const auto attention, rope.Number("attention_factor"));
  ASSIGN_OR_RETURN(const auto mscale, rope.Number("mscale"));
  ASSIGN_OR_RETURN(const auto mscale_all, rope.Number("mscale_all_dim"));
  const auto magnitude = [&](double m) {
    return scaling.factor <= 1.0 ? 1.0 : 0.1 * m * std::log(scaling.factor) + 1.0;
  };
  const bool has_both = mscale.value_or(0.0) != 0.0 && mscale_all.value_or(0.0) != 0.0;
  scaling.attention_factor =
      attention.value_or(has_both ? magnitude(*mscale) / magnitude(*mscale_all) : magnitude(1.0));
  ASSIGN_OR_RETURN(const auto fast, rope.Number("beta_fast"));
  ASSIGN_OR_RETURN(const auto slow, rope.Number("beta_slow"));
  scaling.beta_fast = fast.value_or(32.0);
  scaling.beta_slow = slow.value_or(1.0);
  return absl::OkStatus();
}

// `rope`: rope_scaling (transformers 4) or rope_parameters (5).
absl::StatusOr<RopeScaling> ReadScaling(const JsonMembers& rope, int32_t context_tokens) {
  ASSIGN_OR_RETURN(const auto type, rope.String("rope_type"));
  ASSIGN_OR_RETURN(const auto old_type, rope.String("type"));
  const std::string kind = type.value_or(old_type.value_or("default"));
  RopeScaling scaling;
  ASSIGN_OR_RETURN(const auto partial, rope.Number("partial_rotary_factor"));
  if (partial.value_or(1.0) != 1.0) {
    return absl::UnimplementedError("key \"partial_rotary_factor\" other than 1");
  }
  if (kind == "default") return scaling;
  ASSIGN_OR_RETURN(const auto original, rope.Count("original_max_position_embeddings"));
  scaling.original_context = original.value_or(context_tokens);
  if (kind == "yarn") {
    scaling.kind = RopeScaling::Kind::kYarn;
    RETURN_IF_ERROR(ReadYarn(rope, context_tokens, scaling));
    return scaling;
  }
  if (kind != "linear" && kind != "llama3") {
    return absl::UnimplementedError(absl::StrCat(
        "rope scaling \"", kind, "\"; default, linear, llama3 and yarn are supported"));
  }
  ASSIGN_OR_RETURN(const auto factor, rope.Number("factor"));
  if (!factor.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("key \"factor\" of rope scaling \"", kind, "\" is missing"));
  }
  scaling.factor = *factor;
  if (kind == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
    return scaling;
  }
  scaling.kind = RopeScaling::Kind::kLlama3;
  ASSIGN_OR_RETURN(const auto low, rope.Number("low_freq_factor"));
  ASSIGN_OR_RETURN(const auto high, rope.Number("high_freq_factor"));
  scaling.low_freq_factor = low.value_or(1.0);
  scaling.high_freq_factor = high.value_or(4.0);
  return scaling;
}

// Rotation of one kind of layer. `theta_key` and `scaling_key` are transformers 4's spellings,
// `part` the member of rope_parameters that transformers 5 keeps for this kind ("" for all).
struct RopeKeys {
  absl::string_view theta_key;
  absl::string_view scaling_key;
  absl::string_view part;
  double default_theta = kDefaultTheta;
};
absl::Status ReadRope(const JsonMembers& members, const RopeKeys& keys, int32_t context_tokens,
                      LayerConfig& layer) {
  ASSIGN_OR_RETURN(const auto old_theta, members.Number(keys.theta_key));
  layer.rope_theta = old_theta.value_or(keys.default_theta);
  const json* rope = members.Find("rope_parameters");
  if (rope != nullptr && rope->is_object() && !keys.part.empty()) {
    rope = JsonMembers(*rope).Find(keys.part);
  }
  if (rope == nullptr && !keys.scaling_key.empty()) rope = members.Find(keys.scaling_key);
  if (rope == nullptr) return absl::OkStatus();
  if (!rope->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope parameters are a ", rope->type_name(), ", an object expected"));
  }
  const JsonMembers parameters(*rope);
  ASSIGN_OR_RETURN(const auto theta, parameters.Number("rope_theta"));
  layer.rope_theta = theta.value_or(layer.rope_theta);
  ASSIGN_OR_RETURN(layer.rope_scaling, ReadScaling(parameters, context_tokens));
  return absl::OkStatus();
}

// Which layers look back a window only: `layer_types` where the file has it, else `otherwise`.
absl::StatusOr<std::vector<bool>> LocalLayers(const JsonMembers& members,
                                              std::vector<bool> otherwise) {
  const json* types = members.Find("layer_types");
  if (types == nullptr) return otherwise;
  if (!types->is_array() || types->size() != otherwise.size()) {
    return absl::InvalidArgumentError(absl::StrCat("key \"layer_types\" is not an array of ",
                                                   otherwise.size(), " names, one a layer"));
  }
  std::vector<bool> is_local;
  for (const json& type : *types) {
    const std::string* name = type.get_ptr<const std::string*>();
    if (name == nullptr || (*name != "sliding_attention" && *name != "full_attention")) {
      return absl::UnimplementedError(
          absl::StrCat("layer type ", type.is_string() ? *name : type.type_name(),
                       "; sliding_attention and full_attention are supported"));
    }
    is_local.push_back(*name == "sliding_attention");
  }
  return is_local;
}

absl::Status FillMistral(const JsonMembers& members, ModelConfig& config) {
  if (members.Find("layer_types") != nullptr) {
    return absl::UnimplementedError("key \"layer_types\" in a Mistral checkpoint");
  }
  ASSIGN_OR_RETURN(const auto window, members.Count("sliding_window"));
  const int32_t otherwise = members.Has("sliding_window") ? 0 : kMistralWindow;
  for (LayerConfig& layer : config.layers) layer.sliding_window = window.value_or(otherwise);
  return absl::OkStatus();
}

absl::Status FillQwen(const JsonMembers& members, ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto use_window, members.Bool("use_sliding_window"));
  if (!use_window.value_or(false)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto window, members.Count("sliding_window"));
  const int32_t otherwise = members.Has("sliding_window") ? 0 : kQwenWindow;
  ASSIGN_OR_RETURN(const auto first, members.Count("max_window_layers"));
  std::vector<bool> by_depth(config.layers.size());
  for (size_t i = 0; i < by_depth.size(); ++i) {
    by_depth[i] = i >= static_cast<size_t>(first.value_or(kQwenWindowLayers));
  }
  ASSIGN_OR_RETURN(const std::vector<bool> is_local, LocalLayers(members, std::move(by_depth)));
  for (size_t i = 0; i < is_local.size(); ++i) {
    if (is_local[i]) config.layers[i].sliding_window = window.value_or(otherwise);
  }
  return absl::OkStatus();
}

absl::Status FillGemma(const JsonMembers& members, ModelConfig& config) {
  config.activation = Activation::kGeluTanhMul;
  config.qk_norm = true;
  config.sandwich_norms = true;
  // The reference keeps the root in fp32 when weights are fp32.
  config.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  ASSIGN_OR_RETURN(const auto scalar, members.Number("query_pre_attn_scalar"));
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar.value_or(256.0)));
  LayerConfig local;
  ASSIGN_OR_RETURN(const auto window, members.Count("sliding_window"));
  local.sliding_window = window.value_or(kGemmaWindow);
  RETURN_IF_ERROR(ReadRope(members, {"rope_local_base_freq", "", "sliding_attention"},
                           config.context_tokens, local));
  ASSIGN_OR_RETURN(const auto old_pattern, members.Count("sliding_window_pattern"));
  ASSIGN_OR_RETURN(const auto pattern, members.Count("_sliding_window_pattern"));
  const int32_t period = old_pattern.value_or(pattern.value_or(kGemmaPattern));
  std::vector<bool> by_period(config.layers.size());
  for (size_t i = 0; i < by_period.size(); ++i) {
    by_period[i] = period == 0 || (i + 1) % static_cast<size_t>(period) != 0;
  }
  ASSIGN_OR_RETURN(const std::vector<bool> is_local, LocalLayers(members, std::move(by_period)));
  for (size_t i = 0; i < is_local.size(); ++i) {
    if (is_local[i]) config.layers[i] = local;
  }
  return absl::OkStatus();
}

absl::Status FillSizes(const JsonMembers& members, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.num_layers, members.RequiredCount("num_hidden_layers"));
  if (config.num_layers > kLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "key \"num_hidden_layers\" is ", config.num_layers, ", at most ", kLayersMax, " expected"));
  }
  ASSIGN_OR_RETURN(config.hidden_size, members.RequiredCount("hidden_size"));
  ASSIGN_OR_RETURN(config.num_heads, members.RequiredCount("num_attention_heads"));
  ASSIGN_OR_RETURN(config.ffn_size, members.RequiredCount("intermediate_size"));
  ASSIGN_OR_RETURN(config.vocab_size, members.RequiredCount("vocab_size"));
  ASSIGN_OR_RETURN(config.context_tokens, members.RequiredCount("max_position_embeddings"));
  if (config.architecture == "llama") {
    ASSIGN_OR_RETURN(const auto kv_heads, members.Count("num_key_value_heads"));
    config.num_kv_heads = kv_heads.value_or(config.num_heads);
  } else {
    ASSIGN_OR_RETURN(config.num_kv_heads, members.RequiredCount("num_key_value_heads"));
  }
  int32_t head_dim = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  if (config.architecture == "qwen3") head_dim = 128;
  if (config.architecture == "gemma3") head_dim = 256;
  ASSIGN_OR_RETURN(const auto stated, members.Count("head_dim"));
  config.head_dim = stated.value_or(head_dim);
  return absl::OkStatus();
}

absl::Status CheckActivation(const JsonMembers& members, bool is_gemma) {
  ASSIGN_OR_RETURN(const auto gemma_name, members.String("hidden_activation"));
  ASSIGN_OR_RETURN(const auto name, members.String("hidden_act"));
  const std::string expected = is_gemma ? "gelu_pytorch_tanh" : "silu";
  const std::string found = (is_gemma ? gemma_name : name).value_or(expected);
  if (found == expected) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("activation \"", found, "\"; ", expected, " is supported"));
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHuggingFaceConfig(absl::string_view config_json) {
  ASSIGN_OR_RETURN(const json root, ParseJsonObject(config_json, "the configuration"));
  const JsonMembers members(root);
  ModelConfig config;
  ASSIGN_OR_RETURN(config.architecture, Architecture(root));
  const bool is_gemma = config.architecture == "gemma3";
  const bool is_qwen = config.architecture == "qwen2" || config.architecture == "qwen3";
  RETURN_IF_ERROR(RefuseUnsupported(members));
  RETURN_IF_ERROR(ParseQuantization(root).status());
  RETURN_IF_ERROR(CheckActivation(members, is_gemma));
  RETURN_IF_ERROR(FillSizes(members, config));
  ASSIGN_OR_RETURN(const auto name, members.String("_name_or_path"));
  config.name = name.value_or("");
  ASSIGN_OR_RETURN(const auto eps, members.Number("rms_norm_eps"));
  config.rms_norm_eps = static_cast<float>(eps.value_or(kDefaultEps));
  ASSIGN_OR_RETURN(const auto is_tied, members.Bool("tie_word_embeddings"));
  config.tied_embeddings = is_tied.value_or(is_gemma);
  ASSIGN_OR_RETURN(const auto has_bias, members.Bool("attention_bias"));
  config.attention_bias = has_bias.value_or(false);
  config.attention_output_bias = config.attention_bias;
  if (config.architecture == "qwen2") {
    config.attention_bias = true;
    config.attention_output_bias = false;
  }
  config.qk_norm = config.architecture == "qwen3";
  config.attention_scale =
      static_cast<float>(1.0 / std::sqrt(static_cast<double>(config.head_dim)));
  LayerConfig layer;
  const RopeKeys keys = {"rope_theta", "rope_scaling", is_gemma ? "full_attention" : "",
                         is_gemma ? kGemmaGlobalTheta : kDefaultTheta};
  RETURN_IF_ERROR(ReadRope(members, keys, config.context_tokens, layer));
  config.layers.assign(static_cast<size_t>(config.num_layers), layer);
  if (config.architecture == "mistral") RETURN_IF_ERROR(FillMistral(members, config));
  if (is_qwen) RETURN_IF_ERROR(FillQwen(members, config));
  if (is_gemma) RETURN_IF_ERROR(FillGemma(members, config));
  RETURN_IF_ERROR(ValidateConfig(config));
  return config;
}

}  // namespace tandem::model
