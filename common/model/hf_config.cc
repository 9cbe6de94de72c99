#include "common/model/hf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/architecture/registry.h"
#include "common/model/hf_quantization.h"
#include "common/model/json_reading.h"
#include "common/model/rope_frequencies.h"

namespace tandem::model {
namespace {

using nlohmann::json;

// transformers' default of rms_norm_eps.
constexpr double kDefaultEps = 1e-6;

// Refuses features that would change the answer if the loader ignored them.
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

// RoPE parameters of one kind of layer. `theta_key` and `scaling_key` are transformers 4's
// spellings, `part` the member of rope_parameters that transformers 5 keeps for this kind ("" for
// all kinds).
struct RopeKeys {
  absl::string_view theta_key;
  absl::string_view scaling_key;
  absl::string_view part;
  double default_theta;
};

// Refuses rope_scaling beside rope_parameters unless it means the same. transformers 5 takes it in
// place of rope_parameters, and model cards say to add it to files that may have both.
// `layer`: what rope_parameters says.
absl::Status CheckOldScaling(const JsonMembers& members, const RopeKeys& keys,
                             int32_t context_tokens, const LayerConfig& layer) {
  if (keys.scaling_key.empty()) return absl::OkStatus();
  const json* scaling = members.Find(keys.scaling_key);
  if (scaling == nullptr || !scaling->is_object() || scaling->empty()) return absl::OkStatus();
  if (!keys.part.empty()) {
    const json* part = JsonMembers(*scaling).Find(keys.part);
    if (part != nullptr && part->is_object()) scaling = part;
  }
  const JsonMembers old(*scaling);
  ASSIGN_OR_RETURN(const auto theta, old.Number("rope_theta"));
  ASSIGN_OR_RETURN(const auto common_theta, members.Number(keys.theta_key));
  LayerConfig other;
  other.rope_theta = theta.value_or(common_theta.value_or(layer.rope_theta));
  ASSIGN_OR_RETURN(other.rope_scaling, ReadScaling(old, context_tokens));
  if (SameRope(layer, other)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("keys \"", keys.scaling_key,
                   "\" and \"rope_parameters\" differ, expected one of them, or both to mean the "
                   "same"));
}

absl::Status ReadRope(const JsonMembers& members, const RopeKeys& keys, int32_t context_tokens,
                      LayerConfig& layer) {
  ASSIGN_OR_RETURN(const auto old_theta, members.Number(keys.theta_key));
  layer.rope_theta = old_theta.value_or(keys.default_theta);
  const json* rope = members.Find("rope_parameters");
  if (rope != nullptr && rope->is_object() && !keys.part.empty()) {
    rope = JsonMembers(*rope).Find(keys.part);
  }
  const bool is_new = rope != nullptr;
  if (rope == nullptr && !keys.scaling_key.empty()) rope = members.Find(keys.scaling_key);
  if (rope == nullptr) return absl::OkStatus();
  if (!rope->is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rope parameters are a ", rope->type_name(), ", expected an object"));
  }
  const JsonMembers parameters(*rope);
  ASSIGN_OR_RETURN(const auto theta, parameters.Number("rope_theta"));
  layer.rope_theta = theta.value_or(layer.rope_theta);
  ASSIGN_OR_RETURN(layer.rope_scaling, ReadScaling(parameters, context_tokens));
  return is_new ? CheckOldScaling(members, keys, context_tokens, layer) : absl::OkStatus();
}

// YaRN extends a model beyond the positions of its first training, which max_position_embeddings
// may still tell: Qwen's files do.
void ExtendContext(ModelConfig& config) {
  for (const LayerConfig& layer : config.layers) {
    const RopeScaling& scaling = layer.rope_scaling;
    if (scaling.kind != RopeScaling::Kind::kYarn) continue;
    const double extended = static_cast<double>(scaling.original_context) * scaling.factor;
    if (!(extended > config.context_tokens)) continue;
    // ValidateConfig refuses as many.
    constexpr double kMax = std::numeric_limits<int32_t>::max();
    config.context_tokens = static_cast<int32_t>(std::min(extended, kMax));
  }
}

// Which layers have a sliding window: from `layer_types` if the file has it, else `otherwise`.
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

// The window that config.json states: null means none, and an absent key the architecture's own.
absl::StatusOr<int32_t> ReadWindow(const JsonMembers& members, const Architecture& architecture) {
  const absl::string_view key = architecture.keys.sliding_window.hugging_face;
  ASSIGN_OR_RETURN(const auto window, members.Count(key));
  return window.value_or(members.Has(key) ? 0 : architecture.windows.tokens);
}

// kEveryLayer.
absl::Status FillEveryWindow(const JsonMembers& members, const Architecture& architecture,
                             ModelConfig& config) {
  if (members.Find("layer_types") != nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("key \"layer_types\" in a checkpoint of architecture \"", architecture.name,
                     "\", whose layers all have a window"));
  }
  ASSIGN_OR_RETURN(const int32_t window, ReadWindow(members, architecture));
  for (LayerConfig& layer : config.layers) layer.sliding_window = window;
  return absl::OkStatus();
}

// kDeepLayers.
absl::Status FillDeepWindows(const JsonMembers& members, const Architecture& architecture,
                             ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto use_window, members.Bool("use_sliding_window"));
  if (!use_window.value_or(false)) return absl::OkStatus();
  ASSIGN_OR_RETURN(const int32_t window, ReadWindow(members, architecture));
  ASSIGN_OR_RETURN(const auto first, members.Count("max_window_layers"));
  std::vector<bool> by_depth(config.layers.size());
  for (size_t i = 0; i < by_depth.size(); ++i) {
    by_depth[i] = i >= static_cast<size_t>(first.value_or(architecture.windows.full_layers));
  }
  ASSIGN_OR_RETURN(const std::vector<bool> is_local, LocalLayers(members, std::move(by_depth)));
  for (size_t i = 0; i < is_local.size(); ++i) {
    if (is_local[i]) config.layers[i].sliding_window = window;
  }
  return absl::OkStatus();
}

// kPeriodic.
absl::Status FillPeriodicWindows(const JsonMembers& members, const Architecture& architecture,
                                 ModelConfig& config) {
  const ConfigKeys& keys = architecture.keys;
  LayerConfig local = config.layers.front();
  if (architecture.windowed_rope_theta.has_value()) {
    local = LayerConfig();
    const RopeKeys rope = {keys.windowed_rope_theta.hugging_face, "", "sliding_attention",
                           *architecture.windowed_rope_theta};
    RETURN_IF_ERROR(ReadRope(members, rope, config.context_tokens, local));
  }
  ASSIGN_OR_RETURN(const auto window, members.Count(keys.sliding_window.hugging_face));
  local.sliding_window = window.value_or(architecture.windows.tokens);
  // transformers 5 writes the key with an underscore before it.
  const absl::string_view period_key = keys.window_period.hugging_face;
  ASSIGN_OR_RETURN(const auto old_period, members.Count(period_key));
  ASSIGN_OR_RETURN(const auto new_period, members.Count(absl::StrCat("_", period_key)));
  const int32_t period = old_period.value_or(new_period.value_or(architecture.windows.period));
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

absl::Status FillLayers(const JsonMembers& members, const Architecture& architecture,
                        ModelConfig& config) {
  LayerConfig layer;
  const bool has_parts = architecture.windowed_rope_theta.has_value();
  const RopeKeys rope = {architecture.keys.rope_theta.hugging_face, "rope_scaling",
                         has_parts ? "full_attention" : "", architecture.rope_theta};
  RETURN_IF_ERROR(ReadRope(members, rope, config.context_tokens, layer));
  config.layers.assign(static_cast<size_t>(config.num_layers), layer);
  if (config.layers.empty()) return absl::OkStatus();  // ValidateConfig refuses it
  switch (architecture.windows.hugging_face) {
    case WindowPattern::kNone:
      return absl::OkStatus();
    case WindowPattern::kEveryLayer:
      return FillEveryWindow(members, architecture, config);
    case WindowPattern::kDeepLayers:
      return FillDeepWindows(members, architecture, config);
    case WindowPattern::kPeriodic:
      return FillPeriodicWindows(members, architecture, config);
  }
  return absl::OkStatus();
}

absl::Status FillSizes(const JsonMembers& members, const Architecture& architecture,
                       ModelConfig& config) {
  const ConfigKeys& keys = architecture.keys;
  const auto required = [&](const Spelling& key) {
    return members.RequiredCount(key.hugging_face);
  };
  ASSIGN_OR_RETURN(config.num_layers, required(keys.num_layers));
  if (config.num_layers > kLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat("key \"", keys.num_layers.hugging_face, "\" is ",
                                                   config.num_layers, ", expected at most ",
                                                   kLayersMax));
  }
  ASSIGN_OR_RETURN(config.hidden_size, required(keys.hidden_size));
  ASSIGN_OR_RETURN(config.num_heads, required(keys.num_heads));
  ASSIGN_OR_RETURN(config.ffn_size, required(keys.ffn_size));
  ASSIGN_OR_RETURN(config.vocab_size, required(keys.vocab_size));
  ASSIGN_OR_RETURN(config.context_tokens, required(keys.context_tokens));
  if (architecture.kv_heads_optional) {
    ASSIGN_OR_RETURN(const auto kv_heads, members.Count(keys.num_kv_heads.hugging_face));
    config.num_kv_heads = kv_heads.value_or(config.num_heads);
  } else {
    ASSIGN_OR_RETURN(config.num_kv_heads, required(keys.num_kv_heads));
  }
  int32_t head_dim = architecture.head_dim;
  if (head_dim == 0 && config.num_heads > 0) head_dim = config.hidden_size / config.num_heads;
  ASSIGN_OR_RETURN(const auto stated, members.Count(keys.head_dim.hugging_face));
  config.head_dim = stated.value_or(head_dim);
  return absl::OkStatus();
}

// A flag. If the architecture has no key for it, the architecture decides.
absl::StatusOr<bool> ReadFlag(const JsonMembers& members, const Spelling& key, bool otherwise) {
  if (key.hugging_face.empty()) return otherwise;
  ASSIGN_OR_RETURN(const auto value, members.Bool(key.hugging_face));
  return value.value_or(otherwise);
}

absl::Status FillFlags(const JsonMembers& members, const Architecture& architecture,
                       ModelConfig& config) {
  const ConfigKeys& keys = architecture.keys;
  ASSIGN_OR_RETURN(config.tied_embeddings,
                   ReadFlag(members, keys.tied_embeddings, architecture.tied_embeddings));
  ASSIGN_OR_RETURN(config.attention_bias, ReadFlag(members, keys.qkv_bias, architecture.qkv_bias));
  ASSIGN_OR_RETURN(config.attention_output_bias,
                   ReadFlag(members, keys.output_bias, architecture.output_bias));
  return absl::OkStatus();
}

absl::Status FillScales(const JsonMembers& members, const Architecture& architecture,
                        ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto eps, members.Number(architecture.keys.rms_norm_eps.hugging_face));
  config.rms_norm_eps = static_cast<float>(eps.value_or(kDefaultEps));
  SetEmbeddingScale(architecture, config);
  double scalar = static_cast<double>(config.head_dim);
  const absl::string_view scalar_key = architecture.keys.attention_scalar.hugging_face;
  if (!scalar_key.empty()) {
    ASSIGN_OR_RETURN(const auto stated, members.Number(scalar_key));
    scalar = stated.value_or(architecture.attention_scalar);
  }
  config.attention_scale = static_cast<float>(1.0 / std::sqrt(scalar));
  return absl::OkStatus();
}

absl::Status CheckActivation(const JsonMembers& members, const Architecture& architecture) {
  ASSIGN_OR_RETURN(const auto found, members.String(architecture.keys.activation.hugging_face));
  const absl::string_view expected =
      *architecture.activation == Activation::kGeluTanhMul ? "gelu_pytorch_tanh" : "silu";
  if (!found.has_value() || *found == expected) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat("activation \"", *found, "\"; ", expected, " is supported"));
}

// The one class name in "architectures".
absl::StatusOr<const Architecture*> FindArchitecture(const json& config) {
  const json* classes = JsonMembers(config).Find("architectures");
  if (classes == nullptr || !classes->is_array() || classes->size() != 1 ||
      !(*classes)[0].is_string()) {
    return absl::InvalidArgumentError("key \"architectures\" is not an array of one class name");
  }
  return ArchitectureRegistry::BuiltIn().Find(CheckpointFormat::kHuggingFace,
                                              (*classes)[0].get_ref<const std::string&>());
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHuggingFaceConfig(absl::string_view config_json) {
  ASSIGN_OR_RETURN(const json root, ParseJsonObject(config_json, "the configuration"));
  const JsonMembers members(root);
  ASSIGN_OR_RETURN(const Architecture* architecture, FindArchitecture(root));
  ModelConfig config;
  SetStructure(*architecture, config);
  RETURN_IF_ERROR(RefuseUnsupported(members));
  RETURN_IF_ERROR(ParseQuantization(root).status());
  RETURN_IF_ERROR(CheckActivation(members, *architecture));
  RETURN_IF_ERROR(FillSizes(members, *architecture, config));
  ASSIGN_OR_RETURN(const auto name, members.String("_name_or_path"));
  config.name = name.value_or("");
  RETURN_IF_ERROR(FillFlags(members, *architecture, config));
  RETURN_IF_ERROR(FillScales(members, *architecture, config));
  RETURN_IF_ERROR(FillLayers(members, *architecture, config));
  ExtendContext(config);
  RETURN_IF_ERROR(ValidateConfig(config));
  return config;
}

}  // namespace tandem::model
