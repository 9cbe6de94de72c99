#include "common/model/model_config.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace tandem::model {
namespace {

// Kernels walk heads in vectors of 16 lanes; the largest published head_dim is 256.
constexpr int32_t kHeadDimMultiple = 16;
constexpr int32_t kHeadDimMax = 512;
// Bounds that keep every product of two figures far from 2^63; real models stay below a tenth.
constexpr int32_t kWidthMax = 1 << 22;
constexpr int32_t kVocabularyMax = 1 << 24;

absl::Status InRange(absl::string_view what, int64_t value, int64_t max) {
  if (value >= 1 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(what, " is ", value, ", expected 1 to ", max));
}

absl::Status Positive(absl::string_view what, double value) {
  if (std::isfinite(value) && value > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " is ", value, ", expected a finite number above 0"));
}

absl::Status ValidateLayer(const LayerConfig& layer, int32_t head_dim) {
  RETURN_IF_ERROR(Positive("rope theta", layer.rope_theta));
  if (layer.sliding_window < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("sliding window is ", layer.sliding_window, ", expected 0 or more"));
  }
  const RopeScaling& scaling = layer.rope_scaling;
  if (scaling.kind == RopeScaling::Kind::kNone) return absl::OkStatus();
  if (scaling.kind == RopeScaling::Kind::kFactors) {
    if (scaling.frequency_factors.size() != static_cast<size_t>(head_dim) / 2) {
      return absl::InvalidArgumentError(absl::StrCat(
          scaling.frequency_factors.size(), " rope frequency factors, expected ", head_dim / 2));
    }
    for (const float factor : scaling.frequency_factors) {
      RETURN_IF_ERROR(Positive("a rope frequency factor", factor));
    }
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(Positive("rope scaling factor", scaling.factor));
  if (scaling.kind == RopeScaling::Kind::kLinear) return absl::OkStatus();
  RETURN_IF_ERROR(
      Positive("rope scaling's original context", static_cast<double>(scaling.original_context)));
  if (scaling.kind == RopeScaling::Kind::kLlama3) {
    RETURN_IF_ERROR(Positive("rope scaling's low_freq_factor", scaling.low_freq_factor));
    return Positive("rope scaling's high_freq_factor - low_freq_factor",
                    scaling.high_freq_factor - scaling.low_freq_factor);
  }
  RETURN_IF_ERROR(Positive("rope scaling's attention factor", scaling.attention_factor));
  RETURN_IF_ERROR(Positive("rope scaling's beta_fast", scaling.beta_fast));
  RETURN_IF_ERROR(Positive("rope scaling's beta_slow", scaling.beta_slow));
  // YaRN's ramp takes the logarithm of theta as a divisor.
  return Positive("rope theta - 1", layer.rope_theta - 1);
}

}  // namespace

void SetStructure(const Architecture& architecture, ModelConfig& config) {
  config.architecture = architecture.name;
  config.activation = *architecture.activation;
  config.qk_norm = architecture.qk_norm;
  config.sandwich_norms = architecture.norms == LayerNorms::kSandwich;
}

void SetEmbeddingScale(const Architecture& architecture, ModelConfig& config) {
  if (!architecture.scaled_embeddings) return;
  // The reference keeps the root in fp32 when weights are fp32.
  config.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
}

absl::Status ValidateConfig(const ModelConfig& config) {
  RETURN_IF_ERROR(InRange("the number of layers", config.num_layers, kLayersMax));
  RETURN_IF_ERROR(InRange("the hidden size", config.hidden_size, kWidthMax));
  RETURN_IF_ERROR(InRange("the number of heads", config.num_heads, kWidthMax));
  RETURN_IF_ERROR(InRange("the number of KV heads", config.num_kv_heads, config.num_heads));
  RETURN_IF_ERROR(InRange("the FFN size", config.ffn_size, kWidthMax));
  RETURN_IF_ERROR(InRange("the vocabulary size", config.vocab_size, kVocabularyMax));
  RETURN_IF_ERROR(InRange("the context length", config.context_tokens, 1 << 30));
  if (config.num_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(config.num_heads, " heads cannot share ",
                                                   config.num_kv_heads, " KV heads evenly"));
  }
  if (config.head_dim < 1 || config.head_dim > kHeadDimMax ||
      config.head_dim % kHeadDimMultiple != 0) {
    return absl::UnimplementedError(absl::StrCat("head_dim ", config.head_dim, "; multiples of ",
                                                 kHeadDimMultiple, " up to ", kHeadDimMax,
                                                 " are supported"));
  }
  RETURN_IF_ERROR(Positive("the RMSNorm epsilon", config.rms_norm_eps));
  RETURN_IF_ERROR(Positive("the embedding scale", config.embedding_scale));
  RETURN_IF_ERROR(Positive("the attention scale", config.attention_scale));
  TANDEM_CHECK(config.layers.size() == static_cast<size_t>(config.num_layers), "layers");
  for (const LayerConfig& layer : config.layers) {
    RETURN_IF_ERROR(ValidateLayer(layer, config.head_dim));
  }
  return absl::OkStatus();
}

}  // namespace tandem::model
