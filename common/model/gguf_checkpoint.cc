// A GGUF file as a Checkpoint: metadata to configuration, tokenizer and chat template.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/dequantize.h"
#include "common/model/gguf.h"
#include "common/model/loaded_checkpoint.h"

namespace tandem::model {
namespace {

// Gemma 3's layout where the file does not say otherwise: every sixth layer is global, local
// layers rotate with base 10000.
constexpr int64_t kGemmaGgufPattern = 6;
constexpr double kGemmaLocalTheta = 10000.0;
// Gemma 3 27B is the one size whose query_pre_attn_scalar is not head_dim but hidden / heads; GGUF
// has no key for it, so it is known by its depth.
constexpr int32_t kGemma27bLayers = 62;

// Metadata below "<architecture>.".
class Hyperparameters {
 public:
  Hyperparameters(const GgufFile& file, std::string architecture)
      : file_(file), prefix_(absl::StrCat(architecture, ".")) {}

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
  // An integer, or an array that says the same for every layer.
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
          absl::StrCat("metadata key ", key, " is ", *value, ", 0 to 2147483647 expected"));
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

// Refuses features that would change the answer if they were passed over.
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

absl::StatusOr<RopeScaling> ReadRopeScaling(const GgufFile& file, const Hyperparameters& parameters,
                                            int32_t context_tokens) {
  RopeScaling scaling;
  ASSIGN_OR_RETURN(const std::optional<std::string> type,
                   file.FindString(parameters.Key("rope.scaling.type")));
  // Old files state a linear factor alone.
  ASSIGN_OR_RETURN(const double linear, parameters.FloatOr("rope.scale_linear", 1.0));
  ASSIGN_OR_RETURN(scaling.factor, parameters.FloatOr("rope.scaling.factor", linear));
  const std::string kind = type.value_or(scaling.factor == 1.0 ? "none" : "linear");
  if (kind == "linear") {
    scaling.kind = RopeScaling::Kind::kLinear;
  } else if (kind == "yarn") {
    scaling.kind = RopeScaling::Kind::kYarn;
    ASSIGN_OR_RETURN(scaling.original_context,
                     parameters.IntegerOr("rope.scaling.original_context_length", context_tokens));
    ASSIGN_OR_RETURN(const double factor, parameters.FloatOr("rope.scaling.attn_factor", 1.0));
    // The format's attention factor comes on top of YaRN's own.
    scaling.attention_factor =
        factor * (scaling.factor > 1.0 ? 1.0 + 0.1 * std::log(scaling.factor) : 1.0);
    ASSIGN_OR_RETURN(scaling.beta_fast, parameters.FloatOr("rope.scaling.yarn_beta_fast", 32.0));
    ASSIGN_OR_RETURN(scaling.beta_slow, parameters.FloatOr("rope.scaling.yarn_beta_slow", 1.0));
  } else if (kind != "none") {
    return absl::UnimplementedError(
        absl::StrCat("rope scaling \"", kind, "\"; none, linear and yarn are supported in GGUF"));
  }
  const GgufTensor* factors = FindTensor(file, "rope_freqs.weight");
  if (factors == nullptr) return scaling;
  if (factors->type != TensorType::kF32 || factors->dimensions.size() != 1) {
    return absl::UnimplementedError("tensor rope_freqs.weight: a vector of type F32 expected");
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

absl::Status FillLayers(const GgufFile& file, const Hyperparameters& parameters,
                        ModelConfig& config, absl::Span<const std::byte> bytes) {
  LayerConfig global;
  const bool is_gemma = config.architecture == "gemma3";
  ASSIGN_OR_RETURN(global.rope_theta,
                   parameters.FloatOr("rope.freq_base", is_gemma ? 1000000.0 : 10000.0));
  ASSIGN_OR_RETURN(global.rope_scaling, ReadRopeScaling(file, parameters, config.context_tokens));
  if (std::vector<float>& factors = global.rope_scaling.frequency_factors; !factors.empty()) {
    std::memcpy(factors.data(), bytes.data() + FindTensor(file, "rope_freqs.weight")->offset,
                factors.size() * sizeof(float));
  }
  ASSIGN_OR_RETURN(const int32_t window, parameters.IntegerOr("attention.sliding_window", 0));
  // Converters write qwen2's and qwen3's window even where the model never uses it.
  if (config.architecture == "llama") global.sliding_window = window;
  config.layers.assign(static_cast<size_t>(config.num_layers), global);
  if (!is_gemma) return absl::OkStatus();

  LayerConfig local;
  local.sliding_window = window;
  ASSIGN_OR_RETURN(local.rope_theta, parameters.FloatOr("rope.freq_base_swa", kGemmaLocalTheta));
  const std::string pattern_key = parameters.Key("attention.sliding_window_pattern");
  if (file.IsArray(pattern_key)) {
    ASSIGN_OR_RETURN(auto found, file.FindIntegers(pattern_key));
    const std::vector<int64_t> is_local = std::move(found).value_or(std::vector<int64_t>());
    if (is_local.size() != config.layers.size()) {
      return absl::InvalidArgumentError(absl::StrCat("metadata key ", pattern_key, " has ",
                                                     is_local.size(), " elements, ",
                                                     config.num_layers, " layers expected"));
    }
    for (size_t i = 0; i < config.layers.size(); ++i) {
      if (is_local[i] != 0) config.layers[i] = local;
    }
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const int32_t pattern,
                   parameters.IntegerOr("attention.sliding_window_pattern", kGemmaGgufPattern));
  for (int64_t i = 0; window > 0 && i < config.num_layers; ++i) {
    if (pattern == 0 || (i + 1) % pattern != 0) config.layers[static_cast<size_t>(i)] = local;
  }
  return absl::OkStatus();
}

absl::Status FillSizes(const Hyperparameters& parameters, ModelConfig& config) {
  ASSIGN_OR_RETURN(config.num_layers, parameters.Integer("block_count"));
  if (config.num_layers > kLayersMax) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key ", parameters.Key("block_count"),
                                                   " is ", config.num_layers, ", at most ",
                                                   kLayersMax, " expected"));
  }
  ASSIGN_OR_RETURN(config.hidden_size, parameters.Integer("embedding_length"));
  ASSIGN_OR_RETURN(config.num_heads, parameters.Integer("attention.head_count"));
  ASSIGN_OR_RETURN(config.num_kv_heads,
                   parameters.IntegerOr("attention.head_count_kv", config.num_heads));
  const int32_t even_share = config.num_heads > 0 ? config.hidden_size / config.num_heads : 0;
  ASSIGN_OR_RETURN(config.head_dim, parameters.IntegerOr("attention.key_length", even_share));
  ASSIGN_OR_RETURN(const int32_t value_dim,
                   parameters.IntegerOr("attention.value_length", config.head_dim));
  ASSIGN_OR_RETURN(const int32_t rotated,
                   parameters.IntegerOr("rope.dimension_count", config.head_dim));
  if (value_dim != config.head_dim || rotated != config.head_dim) {
    return absl::UnimplementedError(absl::StrCat("key length ", config.head_dim, ", value length ",
                                                 value_dim, " and rotated dimensions ", rotated,
                                                 " differ; only equal ones are supported"));
  }
  ASSIGN_OR_RETURN(config.ffn_size, parameters.Integer("feed_forward_length"));
  ASSIGN_OR_RETURN(config.context_tokens, parameters.Integer("context_length"));
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> ReadConfig(const GgufFile& file, absl::Span<const std::byte> bytes) {
  ASSIGN_OR_RETURN(const std::optional<std::string> architecture,
                   file.FindString("general.architecture"));
  if (!architecture.has_value()) {
    return absl::InvalidArgumentError("metadata key general.architecture is missing");
  }
  ModelConfig config;
  config.architecture = *architecture;
  const bool is_gemma = config.architecture == "gemma3";
  if (!is_gemma && config.architecture != "llama" && config.architecture != "qwen2" &&
      config.architecture != "qwen3") {
    return absl::UnimplementedError(
        absl::StrCat("architecture \"", config.architecture,
                     "\" is not supported; llama, qwen2, qwen3 and gemma3 are supported in GGUF"));
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> name, file.FindString("general.name"));
  config.name = name.value_or("");
  const Hyperparameters parameters(file, config.architecture);
  RETURN_IF_ERROR(RefuseUnsupported(file, parameters));
  RETURN_IF_ERROR(FillSizes(parameters, config));
  ASSIGN_OR_RETURN(const double eps, parameters.FloatOr("attention.layer_norm_rms_epsilon", 0.0));
  config.rms_norm_eps = static_cast<float>(eps);
  const GgufTensor* embedding = FindTensor(file, "token_embd.weight");
  if (embedding == nullptr || embedding->dimensions.size() < 2 ||
      embedding->dimensions[1] > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        "tensor token_embd.weight, of shape [vocabulary, hidden size], is missing");
  }
  config.vocab_size = static_cast<int32_t>(embedding->dimensions[1]);
  config.tied_embeddings = FindTensor(file, "output.weight") == nullptr;
  config.attention_bias = FindTensor(file, "blk.0.attn_q.bias") != nullptr;
  config.attention_output_bias = FindTensor(file, "blk.0.attn_output.bias") != nullptr;
  config.qk_norm = is_gemma || config.architecture == "qwen3";
  config.sandwich_norms = is_gemma;
  config.activation = is_gemma ? Activation::kGeluTanhMul : Activation::kSiluMul;
  if (is_gemma) {
    config.embedding_scale = static_cast<float>(std::sqrt(static_cast<double>(config.hidden_size)));
  }
  const double scalar = is_gemma && config.num_layers == kGemma27bLayers && config.num_heads > 0
                            ? static_cast<double>(config.hidden_size) / config.num_heads
                            : static_cast<double>(config.head_dim);
  ASSIGN_OR_RETURN(const double scale, parameters.FloatOr("attention.scale", 0.0));
  config.attention_scale = static_cast<float>(scale != 0.0 ? scale : 1.0 / std::sqrt(scalar));
  RETURN_IF_ERROR(FillLayers(file, parameters, config, bytes));
  RETURN_IF_ERROR(ValidateConfig(config));
  return config;
}

// A token id of the metadata, checked against the vocabulary.
absl::StatusOr<std::optional<int32_t>> FindTokenId(const GgufFile& file, absl::string_view name,
                                                   int32_t vocab_size) {
  const std::string key = absl::StrCat("tokenizer.ggml.", name);
  ASSIGN_OR_RETURN(const std::optional<int64_t> id, file.FindInteger(key));
  if (!id.has_value()) return std::optional<int32_t>();
  if (*id < 0 || *id >= vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key ", key, " is ", *id,
                                                   ", the vocabulary has ", vocab_size, " tokens"));
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

absl::Status CheckCount(absl::string_view key, size_t found, size_t expected) {
  if (found == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("metadata key ", key, " has ", found,
                                                 " elements, one for each of ", expected,
                                                 " tokens expected"));
}

absl::StatusOr<TokenizerSource> ReadTokenizer(const GgufFile& file, int32_t vocab_size) {
  TokenizerSource source;
  ASSIGN_OR_RETURN(const auto model, file.FindString("tokenizer.ggml.model"));
  if (!model.has_value()) return source;
  source.gguf_model = *model;
  ASSIGN_OR_RETURN(const auto pre, file.FindString("tokenizer.ggml.pre"));
  source.gguf_pre = pre.value_or("default");
  ASSIGN_OR_RETURN(auto tokens, file.FindStrings("tokenizer.ggml.tokens"));
  if (!tokens.has_value()) {
    return absl::InvalidArgumentError("metadata key tokenizer.ggml.tokens is missing");
  }
  source.tokens = std::move(*tokens);
  const size_t count = source.tokens.size();
  if (count > static_cast<size_t>(vocab_size)) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key tokenizer.ggml.tokens has ", count,
                                                   " tokens, the embedding only ", vocab_size));
  }
  ASSIGN_OR_RETURN(auto scores, file.FindFloats("tokenizer.ggml.scores"));
  if (scores.has_value()) {
    RETURN_IF_ERROR(CheckCount("tokenizer.ggml.scores", scores->size(), count));
    source.scores = std::move(*scores);
  }
  ASSIGN_OR_RETURN(const auto types, file.FindIntegers("tokenizer.ggml.token_type"));
  if (types.has_value()) {
    RETURN_IF_ERROR(CheckCount("tokenizer.ggml.token_type", types->size(), count));
    for (const int64_t type : *types) source.token_types.push_back(static_cast<int32_t>(type));
  }
  ASSIGN_OR_RETURN(auto merges, file.FindStrings("tokenizer.ggml.merges"));
  if (merges.has_value()) source.merges = std::move(*merges);
  const auto bound = static_cast<int32_t>(count);
  ASSIGN_OR_RETURN(source.bos_token_id, FindTokenId(file, "bos_token_id", bound));
  ASSIGN_OR_RETURN(source.eos_token_id, FindTokenId(file, "eos_token_id", bound));
  ASSIGN_OR_RETURN(source.eot_token_id, FindTokenId(file, "eot_token_id", bound));
  ASSIGN_OR_RETURN(source.unknown_token_id, FindTokenId(file, "unknown_token_id", bound));
  ASSIGN_OR_RETURN(source.padding_token_id, FindTokenId(file, "padding_token_id", bound));
  ASSIGN_OR_RETURN(source.add_bos, file.FindBool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(source.add_eos, file.FindBool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(source.add_space_prefix, file.FindBool("tokenizer.ggml.add_space_prefix"));
  return source;
}

absl::StatusOr<std::vector<int32_t>> StopTokens(const GgufFile& file,
                                                const TokenizerSource& tokenizer) {
  constexpr int32_t kControl = 3;
  std::vector<int32_t> ids;
  ASSIGN_OR_RETURN(
      const std::optional<int32_t> eom,
      FindTokenId(file, "eom_token_id", static_cast<int32_t>(tokenizer.tokens.size())));
  for (const std::optional<int32_t> id : {tokenizer.eos_token_id, tokenizer.eot_token_id, eom}) {
    if (id.has_value()) ids.push_back(*id);
  }
  for (size_t i = 0; i < tokenizer.token_types.size(); ++i) {
    if (tokenizer.token_types[i] == kControl && IsTurnEnd(tokenizer.tokens[i])) {
      ids.push_back(static_cast<int32_t>(i));
    }
  }
  return ids;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(std::unique_ptr<MappedFile> file) {
  const absl::Span<const std::byte> bytes = file->bytes();
  ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(bytes));
  LoadedCheckpoint::Parts parts;
  ASSIGN_OR_RETURN(parts.config, ReadConfig(gguf, bytes));
  std::vector<FileTensor> tensors;
  for (const GgufTensor& tensor : gguf.tensors()) {
    FileTensor found;
    found.name = tensor.name;
    found.type = tensor.type;
    found.shape.assign(tensor.dimensions.rbegin(), tensor.dimensions.rend());
    found.data = bytes.data() + tensor.offset;
    tensors.push_back(std::move(found));
  }
  ASSIGN_OR_RETURN(parts.tensors, TensorTable::Bind(parts.config, TensorNaming::kGguf, tensors));
  ASSIGN_OR_RETURN(parts.tokenizer, ReadTokenizer(gguf, parts.config.vocab_size));
  ASSIGN_OR_RETURN(parts.stop_token_ids, StopTokens(gguf, parts.tokenizer));
  ASSIGN_OR_RETURN(const auto chat_template, gguf.FindString("tokenizer.chat_template"));
  parts.chat_template = chat_template.value_or("");
  parts.files.push_back(std::move(file));
  return std::make_unique<LoadedCheckpoint>(std::move(parts));
}

}  // namespace tandem::model
