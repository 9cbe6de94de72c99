// The description of a model architecture as data: the names that its checkpoints use, the parts of
// a layer, and the values that apply when a checkpoint omits them. Each architecture is one file in
// families/ that fills an Architecture; the loaders of both checkpoint formats read it and set a
// ModelConfig (common/model/model_config.h) from it, and the forward passes read only the
// ModelConfig. Every default below is the Llama convention, so a description states only what
// differs.
// Thread safety: a value. Owner: ArchitectureRegistry.
// Invariant: an Architecture that ValidateArchitecture accepts needs no further checks.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/model/architecture/tensor_role.h"

namespace tandem::model {

// The two checkpoint formats, which name keys and tensors differently.
enum class CheckpointFormat { kHuggingFace, kGguf };

// How the FFN combines its gate and up projections.
enum class Activation {
  kSiluMul,      // silu(gate) * up
  kGeluTanhMul,  // gelu(gate) * up, gelu in its tanh approximation
};

// A name in both formats. An empty name means that the format does not store the value.
struct Spelling {
  absl::string_view hugging_face;
  absl::string_view gguf;

  absl::string_view in(CheckpointFormat format) const {
    return format == CheckpointFormat::kGguf ? gguf : hugging_face;
  }
};

// Keys of config.json, and of GGUF metadata after the prefix "<architecture>.".
struct ConfigKeys {
  Spelling num_layers = {"num_hidden_layers", "block_count"};
  Spelling hidden_size = {"hidden_size", "embedding_length"};
  Spelling num_heads = {"num_attention_heads", "attention.head_count"};
  Spelling num_kv_heads = {"num_key_value_heads", "attention.head_count_kv"};
  Spelling head_dim = {"head_dim", "attention.key_length"};
  Spelling ffn_size = {"intermediate_size", "feed_forward_length"};
  Spelling vocab_size = {"vocab_size", ""};  // GGUF: the rows of the token embedding
  Spelling context_tokens = {"max_position_embeddings", "context_length"};
  Spelling rms_norm_eps = {"rms_norm_eps", "attention.layer_norm_rms_epsilon"};
  Spelling activation = {"hidden_act", ""};
  Spelling tied_embeddings = {"tie_word_embeddings", ""};  // GGUF: no output tensor
  // Whether q, k and v, and whether o, have biases. GGUF: whether the tensors exist.
  Spelling qkv_bias = {"attention_bias", ""};
  Spelling output_bias = {"attention_bias", ""};
  // q·k is divided by the square root of this number; head_dim if the format has no such key.
  Spelling attention_scalar = {"", ""};
  Spelling rope_theta = {"rope_theta", "rope.freq_base"};
  // RoPE base of layers with a sliding window; used only if `windowed_rope_theta` is set.
  Spelling windowed_rope_theta = {"rope_local_base_freq", "rope.freq_base_swa"};
  Spelling sliding_window = {"sliding_window", "attention.sliding_window"};
  Spelling window_period = {"sliding_window_pattern", "attention.sliding_window_pattern"};
};

// The name of a role's tensor. Names of per-layer tensors follow the prefix "model.layers.N."
// (Hugging Face) or "blk.N." (GGUF).
using TensorNames = std::array<Spelling, kTensorRoleCount>;  // indexed by TensorRole
struct TensorName {
  TensorRole role = TensorRole::kTokenEmbedding;
  Spelling name;
};

// Where a layer has an RMSNorm over the hidden size.
enum class LayerNorms {
  kPre,       // before attention and before the FFN
  kSandwich,  // also after each, before the residual addition
};

// Which layers see only the newest tokens.
enum class WindowPattern {
  kNone,        // no layer: each sees all tokens
  kEveryLayer,  // every layer
  kDeepLayers,  // all but the first `max_window_layers`, if `use_sliding_window` is true
  kPeriodic,    // all but every period-th layer
};
struct SlidingWindows {
  // The formats differ: a GGUF file of a Mistral model says "llama", and GGUF converters write a
  // window for Qwen models that never use it.
  WindowPattern hugging_face = WindowPattern::kNone;
  WindowPattern gguf = WindowPattern::kNone;
  // What applies if the checkpoint has no such key:
  int32_t tokens = 0;       // the window of Hugging Face checkpoints, a row's own token included
  int32_t full_layers = 0;  // kDeepLayers: the number of first layers without a window
  int32_t period = 0;       // kPeriodic

  WindowPattern in(CheckpointFormat format) const {
    return format == CheckpointFormat::kGguf ? gguf : hugging_face;
  }
};

struct Architecture {
  // --- Identity ---
  // ModelConfig::architecture, and part of every checkpoint's fingerprint: never change it.
  std::string name;
  // hugging_face: the class in config.json's "architectures". gguf: "general.architecture".
  // At least one is not empty; an empty one means that no checkpoint of that format exists.
  Spelling spelling;

  // --- The names that checkpoints use ---
  ConfigKeys keys;
  std::vector<TensorName> tensor_names;  // those that differ from LlamaTensorNames()

  // --- What a layer computes ---
  std::optional<Activation> activation;  // required
  LayerNorms norms = LayerNorms::kPre;
  bool qk_norm = false;            // RMSNorm of each q and k head before RoPE
  bool scaled_embeddings = false;  // embeddings are multiplied by sqrt(hidden_size)
  SlidingWindows windows;
  // RoPE bases, if the checkpoint has no such key. If `windowed_rope_theta` is set, layers with a
  // sliding window have RoPE parameters of their own, which Hugging Face keeps below
  // "sliding_attention" and those of the others below "full_attention".
  double rope_theta = 10000.0;
  std::optional<double> windowed_rope_theta;

  // --- How checkpoints store weights ---
  // Norm weights of Hugging Face checkpoints are stored minus one. GGUF's converter adds it.
  bool norm_weights_minus_one = false;
  // GGUF's converter reorders the rows of q and k from RoPE's half-split to its interleaved form.
  bool gguf_permutes_qk = false;

  // --- What applies if a config.json has no such key ---
  int32_t head_dim = 0;            // 0: hidden_size / num_heads, as always in GGUF
  bool kv_heads_optional = false;  // then num_kv_heads = num_heads; otherwise an error
  bool tied_embeddings = false;
  bool qkv_bias = false;
  bool output_bias = false;
  double attention_scalar = 0.0;  // needed if `keys.attention_scalar` names a key
  // The Jinja template of conversations, for checkpoints that carry none; empty: there is none.
  absl::string_view chat_template;
  // GGUF has no key for the attention scalar. Models of this depth, if not 0, use
  // hidden_size / num_heads in place of head_dim.
  int32_t gguf_even_scalar_layers = 0;
};

// The Llama names of all roles, the default for every architecture.
const TensorNames& LlamaTensorNames();

// What `format` calls the tensor of `role` in `layer` (-1 for roles that are not per layer).
// REQUIRES: `architecture` is valid and exists in `format`; (layer >= 0) == IsPerLayer(role).
std::string TensorNameOf(const Architecture& architecture, CheckpointFormat format, TensorRole role,
                         int layer);

// The roles that can occur in one layer, or in the whole model, of this architecture.
bool UsesRole(const Architecture& architecture, TensorRole role);

// Checks that the description is complete and unambiguous: required fields are set, every pattern
// has the numbers it needs, and every tensor that can occur has a name of its own in each format.
// Errors: kInvalidArgument naming the architecture and the field.
absl::Status ValidateArchitecture(const Architecture& architecture);

}  // namespace tandem::model
