#include "common/model/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/model/architecture/registry.h"

namespace tandem::model {
namespace {

// The divisors of the rotary frequencies, a tensor that is part of the configuration.
constexpr absl::string_view kRopeFactors = "rope_freqs.weight";

// Metadata below "<architecture>.".
class Hyperparameters {
 public:
  Hyperparameters(const GgufFile& file, absl::string_view prefix)
      : file_(file), prefix_(absl::StrCat(prefix, ".")) {}

  std::string Key(absl::string_view name) const { return absl::StrCat(prefix_, name); }

  absl::StatusOr<int32_t> Integer(absl::string_view name) const {
    ASSIGN_OR_RETURN(const std::optional<int64_t> value, Find(name));
    if (!value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("metadata key ", Key(name), " is missing"));
    }
    return static_cast<int32_t>(*value);
  }
  absl::StatusOr<int32_t> IntegerOr(absl::string_view name, int64_t otherwise) const {
    ASSIGN_OR_RETURN(const std::optional<int64_t> value, Find(name));
    return static_cast<int32_t>(value.value_or(otherwise));
  }
  absl::StatusOr<double> FloatOr(absl::string_view name, double otherwise) const {
    ASSIGN_OR_RETURN(const std::optional<double> value, file_.FindFloat(Key(name)));
    return value.value_or(otherwise);
  }

 private:
  // An integer, or an array with the same integer for every layer.
  absl::StatusOr<std::optional<int64_t>> Find(absl::string_view name) const {
    const std::string key = Key(name);
    std::optional<int64_t> value;
    if (file_.IsArray(key)) {
      ASSIGN_OR_RETURN(auto found, file_.FindIntegers(key));
      const std::vector<int64_t> values = std::move(found).value_or(std::vector<int64_t>());
      if (values.empty()) return value;
      value = values.front();
      if (std::any_of(values.begin(), values.end(), [&](int64_t v) { return v != *value; })) {
        return absl::UnimplementedError(
            absl::StrCat("metadata key ", key, " differs from layer to layer"));
      }
    } else {
      ASSIGN_OR_RETURN(value, file_.FindInteger(key));
    }
    if (value.has_value() && (*value < 0 || *value > std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError(
          absl::StrCat("metadata key ", key, " is ", *value, ", expected 0 to 2147483647"));
    }
    return value;
  }

  const GgufFile& file_;
  const std::string prefix_;
};

const GgufTensor* FindTensor(const GgufFile& file, absl::string_view name) {
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

// Refuses features that would change the answer if the loader ignored them.
absl::Status RefuseUnsupported(const GgufFile& file, const Hyperparameters& parameters) {
  for (const absl::string_view name :
       {"expert_count", "attn_logit_softcapping", "final_logit_softcapping", "logit_scale",
        "residual_scale", "embedding_scale", "attention.clamp_kqv", "attention.max_alibi_bias"}) {
    ASSIGN_OR_RETURN(const double value, parameters.FloatOr(name, 0.0));
    if (value != 0.0) {
      return absl::UnimplementedError(absl::StrCat("metadata key ", parameters.Key(name), " = ",
                                                   value, ": this feature is not supported"));
    }
  }
  ASSIGN_OR_RETURN(const std::optional<int64_t> splits, file.FindInteger("split.count"));
  if (splits.value_or(1) > 1) {
    return absl::UnimplementedError(absl::StrCat("one of ", *splits,
                                                 " parts of a split GGUF checkpoint; merge them "
                                                 "into one file first"));
  }
  ASSIGN_OR_RETURN(const std::optional<bool> causal,
                   file.FindBool(parameters.Key("attention.causal")));
  if (!causal.value_or(true)) {
    return absl::UnimplementedError("attention without a causal mask is not supported");
  }
  return absl::OkStatus();
}

// Refuses YaRN parameters that converters write and the tables do not take, unless they have their
// defaults. -1 stands for an unset factor.
absl::Status RefuseUnsupportedYarn(const Hyperparameters& parameters, bool is_yarn) {
  struct Parameter {
    absl::string_view name;
    double otherwise;
    bool may_be_unset;
  };
  for (const auto& [name, otherwise, may_be_unset] :
       {Parameter{"rope.scaling.yarn_ext_factor", is_yarn ? 1.0 : 0.0, true},
        Parameter{"rope.scaling.yarn_attn_factor", 1.0, true},
        Parameter{"rope.scaling.yarn_log_multiplier", 0.0, false}}) {
    ASSIGN_OR_RETURN(const double value, parameters.FloatOr(name, otherwise));
    if (value == otherwise || (may_be_unset && value == -1.0)) continue;
    return absl::UnimplementedError(absl::StrCat("metadata key ", parameters.Key(name), " = ",
                                                 value, "; only ", otherwise, " is supported"));
  }
  return absl::OkStatus();
}

absl::StatusOr<RopeScaling> ReadRopeScaling(const GgufFile& file, const Hyperparameters& parameters,
                                            int32_t context_tokens) {
  RopeScaling scaling;
  ASSIGN_OR_RETURN(const std::optional<std::string> type,
                   file.FindString(parameters.Key("rope.scaling.type")));
  // Old files have a linear factor without a scaling type.
  ASSIGN_OR_RETURN(const double linear, parameters.FloatOr("rope.scale_linear", 1.0));
  ASSIGN_OR_RETURN(scaling.factor, parameters.FloatOr("rope.scaling.factor", linear));
  const std::string kind = type.value_or(scaling.factor == 1.0 ? "none" : "linear");
  RETURN_IF_ERROR(RefuseUnsupportedYarn(parameters, kind == "yarn"));
  if (kind == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (kind == "yarn") {
    scaling.kind = RopeScaling::Kind::kYarn;
    ASSIGN_OR_RETURN(scaling.original_context,
                     parameters.IntegerOr("rope.scaling.original_context_length", context_tokens));
    ASSIGN_OR_RETURN(const double factor, parameters.FloatOr("rope.scaling.attn_factor", 1.0));
    // GGUF's attention factor multiplies YaRN's own.
    scaling.attention_factor =
        factor * (scaling.factor > 1.0 ? 1.0 + 0.1 * std::log(scaling.factor) : 1.0);
    ASSIGN_OR_RETURN(scaling.beta_fast, parameters.FloatOr("rope.scaling.yarn_beta_fast", 32.0));
    ASSIGN_OR_RETURN(scaling.beta_slow, parameters.FloatOr("rope.scaling.yarn_beta_slow", 1.0));
  } else if (kind != "none") {
    return absl::UnimplementedError(
        absl::StrCat("rope scaling \"", kind, "\"; none, linear and yarn are supported in GGUF"));
  }
  const GgufTensor* factors = FindTensor(file, kRopeFactors);
  if (factors == nullptr) return scaling;
  if (factors->type != TensorType::kF32 || factors->dimensions.size() != 1) {
    return absl::UnimplementedError("tensor rope_freqs.weight: expected a vector of type F32");
  }
  if (scaling.kind != RopeScaling::Kind::kNone) {
    return absl::UnimplementedError(
        absl::StrCat("tensor rope_freqs.weight together with rope scaling \"", kind, "\""));
  }
  scaling.kind = RopeScaling::Kind::kFactors;
  scaling.factor = 1.0;
  scaling.frequency_factors.resize(factors->size_bytes / sizeof(float));
  return scaling;
}

// Applies `local` to all but every period-th layer, or to the layers that an array names.
absl::Status FillPeriodicWindows(const GgufFile& file, const Hyperparameters& parameters,
                                 const Architecture& architecture, const LayerConfig& local,
                                 ModelConfig& config) {
  const absl::string_view name = architecture.keys.window_period.gguf;
  const std::string key = parameters.Key(name);
  if (file.IsArray(key)) {
    ASSIGN_OR_RETURN(auto found, file.FindIntegers(key));
    const std::vector<int64_t> is_local = std::move(found).value_or(std::vector<int64_t>());
    if (is_local.size() != config.layers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("metadata key ", key, " has ", is_local.size(),
                                                     " elements, expected one for each of ",
                                                     config.num_layers, " layers"));
    }
    for (size_t i = 0; i < config.layers.size(); ++i) {
      if (is_local[i] != 0) config.layers[i] = local;
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const int32_t period, parameters.IntegerOr(name, architecture.windows.period));
  for (int64_t i = 0; local.sliding_window > 0 && i < config.num_layers; ++i) {
    if (period == 0 || (i + 1) % period != 0) config.layers[static_cast<size_t>(i)] = local;
  }
  return absl::OkStatus();
}

absl::Status FillLayers(const GgufFile& file, const Hyperparameters& parameters,
                        const Architecture& architecture, absl::Span<const std::byte> bytes,
                        ModelConfig& config) {
  const ConfigKeys& keys = architecture.keys;
  LayerConfig global;
  ASSIGN_OR_RETURN(global.rope_theta,
                   parameters.FloatOr(keys.rope_theta.gguf, architecture.rope_theta));
  ASSIGN_OR_RETURN(global.rope_scaling, ReadRopeScaling(file, parameters, config.context_tokens));
  if (std::vector<float>& factors = global.rope_scaling.frequency_factors; !factors.empty()) {
    std::memcpy(factors.data(), bytes.data() + FindTensor(file, kRopeFactors)->offset,
                factors.size() * sizeof(float));
  }
  config.layers.assign(static_cast<size_t>(config.num_layers), global);
  ASSIGN_OR_RETURN(const int32_t window, parameters.IntegerOr(keys.sliding_window.gguf, 0));
  LayerConfig local = global;
  if (architecture.windowed_rope_theta.has_value()) {
    local = LayerConfig();
    ASSIGN_OR_RETURN(local.rope_theta, parameters.FloatOr(keys.windowed_rope_theta.gguf,
                                                          *architecture.windowed_rope_theta));
  }
  local.sliding_window = window;
  switch (architecture.windows.gguf) {
    case WindowPattern::kEveryLayer:
      config.layers.assign(config.layers.size(), local);
      break;
    case WindowPattern::kPeriodic:
      return FillPeriodicWindows(file, parameters, architecture, local, config);
    case WindowPattern::kNone:
    case WindowPattern::kDeepLayers:  // ValidateArchitecture refuses it for GGUF
      break;
  }
  return absl::OkStatus();
}

absl::Status FillSizes(const Hyperparameters& parameters, const ConfigKeys& keys,
                       ModelConfig& config) {
  ASSIGN_OR_RETURN(config.num_layers, parameters.Integer(keys.num_layers.gguf));
  if (config.num_layers > kLayersMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("metadata key ", parameters.Key(keys.num_layers.gguf), " is ",
                     config.num_layers, ", expected at most ", kLayersMax));
  }
  ASSIGN_OR_RETURN(config.hidden_size, parameters.Integer(keys.hidden_size.gguf));
  ASSIGN_OR_RETURN(config.num_heads, parameters.Integer(keys.num_heads.gguf));
  ASSIGN_OR_RETURN(config.num_kv_heads,
                   parameters.IntegerOr(keys.num_kv_heads.gguf, config.num_heads));
  const int32_t even_share = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  ASSIGN_OR_RETURN(config.head_dim, parameters.IntegerOr(keys.head_dim.gguf, even_share));
  ASSIGN_OR_RETURN(const int32_t value_dim,
                   parameters.IntegerOr("attention.value_length", config.head_dim));
  ASSIGN_OR_RETURN(const int32_t rotated,
                   parameters.IntegerOr("rope.dimension_count", config.head_dim));
  if (value_dim != config.head_dim || rotated != config.head_dim) {
    return absl::UnimplementedError(absl::StrCat("key length ", config.head_dim, ", value length ",
                                                 value_dim, " and rotated dimensions ", rotated,
                                                 " differ; only equal ones are supported"));
  }
  ASSIGN_OR_RETURN(config.ffn_size, parameters.Integer(keys.ffn_size.gguf));
  ASSIGN_OR_RETURN(config.context_tokens, parameters.Integer(keys.context_tokens.gguf));
  ASSIGN_OR_RETURN(const double eps, parameters.FloatOr(keys.rms_norm_eps.gguf, 0.0));
  config.rms_norm_eps = static_cast<float>(eps);
  return absl::OkStatus();
}

// What GGUF states by the presence of tensors.
absl::Status FillFromTensors(const GgufFile& file, const Architecture& architecture,
                             ModelConfig& config) {
  const auto find = [&](TensorRole role, int layer) {
    return FindTensor(file, TensorNameOf(architecture, CheckpointFormat::kGguf, role, layer));
  };
  const GgufTensor* embedding = find(TensorRole::kTokenEmbedding, -1);
  if (embedding == nullptr || embedding->dimensions.size() < 2 ||
      embedding->dimensions[1] > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ",
        TensorNameOf(architecture, CheckpointFormat::kGguf, TensorRole::kTokenEmbedding, -1),
        ", of shape [vocabulary, hidden size], is missing"));
  }
  config.vocab_size = static_cast<int32_t>(embedding->dimensions[1]);
  config.tied_embeddings = find(TensorRole::kOutput, -1) == nullptr;
  config.attention_bias = find(TensorRole::kQBias, 0) != nullptr;
  config.attention_output_bias = find(TensorRole::kOBias, 0) != nullptr;
  return absl::OkStatus();
}

// The factor of q·k: stated, or the inverse root of head_dim.
absl::Status FillAttentionScale(const Hyperparameters& parameters, const Architecture& architecture,
                                ModelConfig& config) {
  const int32_t even_layers = architecture.gguf_even_scalar_layers;
  const bool is_even_share =
      even_layers > 0 && config.num_layers == even_layers && config.num_heads > 0;
  const double scalar = is_even_share ? static_cast<double>(config.hidden_size) / config.num_heads
                                      : static_cast<double>(config.head_dim);
  ASSIGN_OR_RETURN(const double scale, parameters.FloatOr("attention.scale", 0.0));
  config.attention_scale = static_cast<float>(scale != 0.0 ? scale : 1.0 / std::sqrt(scalar));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<const Architecture*> FindGgufArchitecture(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::optional<std::string> spelling,
                   file.FindString("general.architecture"));
  if (!spelling.has_value()) {
    return absl::InvalidArgumentError("metadata key general.architecture is missing");
  }
  return ArchitectureRegistry::BuiltIn().Find(CheckpointFormat::kGguf, *spelling);
}

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file, const Architecture& architecture,
                                           absl::Span<const std::byte> bytes) {
  ModelConfig config;
  SetStructure(architecture, config);
  ASSIGN_OR_RETURN(const std::optional<std::string> name, file.FindString("general.name"));
  config.name = name.value_or("");
  const Hyperparameters parameters(file, architecture.spelling.gguf);
  RETURN_IF_ERROR(RefuseUnsupported(file, parameters));
  RETURN_IF_ERROR(FillSizes(parameters, architecture.keys, config));
  SetEmbeddingScale(architecture, config);
  RETURN_IF_ERROR(FillFromTensors(file, architecture, config));
  RETURN_IF_ERROR(FillAttentionScale(parameters, architecture, config));
  RETURN_IF_ERROR(FillLayers(file, parameters, architecture, bytes, config));
  RETURN_IF_ERROR(ValidateConfig(config));
  return config;
}

}  // namespace tandem::model
