#include "common/model/architecture/architecture.h"

#include <algorithm>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::model {
namespace {

Spelling SpellingOf(const Architecture& architecture, TensorRole role) {
  for (const TensorName& own : architecture.tensor_names) {
    if (own.role == role) return own.name;
  }
  return LlamaTensorNames()[static_cast<size_t>(role)];
}

absl::Status Refuse(const Architecture& architecture, absl::string_view what) {
  return absl::InvalidArgumentError(
      absl::StrCat("description of architecture \"", architecture.name, "\": ", what));
}

absl::Status CheckIdentity(const Architecture& architecture) {
  const auto is_allowed = [](unsigned char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '_' || c == '-';
  };
  if (architecture.name.empty() ||
      !std::all_of(architecture.name.begin(), architecture.name.end(), is_allowed)) {
    return Refuse(architecture,
                  "field name must be a word of lower-case letters, digits, '_' and '-'");
  }
  if (architecture.spelling.hugging_face.empty() && architecture.spelling.gguf.empty()) {
    return Refuse(architecture, "field spelling is empty in both formats, expected at least one");
  }
  return absl::OkStatus();
}

// Keys without which a loader cannot size the model.
absl::Status CheckKeys(const Architecture& architecture, CheckpointFormat format) {
  const ConfigKeys& keys = architecture.keys;
  const struct {
    const char* field;
    const Spelling& spelling;
    bool hugging_face_only;
  } kRequired[] = {
      {"num_layers", keys.num_layers, false},
      {"hidden_size", keys.hidden_size, false},
      {"num_heads", keys.num_heads, false},
      {"num_kv_heads", keys.num_kv_heads, false},
      {"head_dim", keys.head_dim, false},
      {"ffn_size", keys.ffn_size, false},
      {"vocab_size", keys.vocab_size, true},
      {"rms_norm_eps", keys.rms_norm_eps, false},
      {"context_tokens", keys.context_tokens, false},
      {"rope_theta", keys.rope_theta, false},
  };
  for (const auto& required : kRequired) {
    if (required.hugging_face_only && format == CheckpointFormat::kGguf) continue;
    if (required.spelling.in(format).empty()) {
      return Refuse(architecture, absl::StrCat("field keys.", required.field, " is empty"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckWindows(const Architecture& architecture, CheckpointFormat format) {
  const SlidingWindows& windows = architecture.windows;
  const WindowPattern pattern = windows.in(format);
  if (pattern == WindowPattern::kNone) return absl::OkStatus();
  if (architecture.keys.sliding_window.in(format).empty()) {
    return Refuse(architecture, "field keys.sliding_window is empty, but layers have windows");
  }
  if (format == CheckpointFormat::kHuggingFace && windows.tokens <= 0) {
    return Refuse(architecture, "field windows.tokens must be above 0");
  }
  if (pattern == WindowPattern::kDeepLayers &&
      (format == CheckpointFormat::kGguf || windows.full_layers <= 0)) {
    return Refuse(architecture,
                  "pattern kDeepLayers needs windows.full_layers above 0 and has no GGUF form");
  }
  if (pattern == WindowPattern::kPeriodic && windows.period <= 0) {
    return Refuse(architecture, "pattern kPeriodic needs windows.period above 0");
  }
  return absl::OkStatus();
}

absl::Status CheckTensorNames(const Architecture& architecture, CheckpointFormat format) {
  absl::flat_hash_map<absl::string_view, TensorRole> roles;
  for (size_t i = 0; i < kTensorRoleCount; ++i) {
    const TensorRole role = static_cast<TensorRole>(i);
    if (!UsesRole(architecture, role)) continue;
    const absl::string_view name = SpellingOf(architecture, role).in(format);
    if (name.empty()) {
      return Refuse(architecture,
                    absl::StrCat("the tensor of role \"", TensorRoleName(role), "\" has no name"));
    }
    const auto [other, is_new] = roles.emplace(name, role);
    if (!is_new) {
      return Refuse(architecture,
                    absl::StrCat("tensor ", name, " is both \"", TensorRoleName(other->second),
                                 "\" and \"", TensorRoleName(role), "\""));
    }
  }
  return absl::OkStatus();
}

}  // namespace

const TensorNames& LlamaTensorNames() {
  static constexpr TensorNames kNames = {{
      {"model.embed_tokens.weight", "token_embd.weight"},
      {"lm_head.weight", "output.weight"},
      {"model.norm.weight", "output_norm.weight"},
      {"input_layernorm.weight", "attn_norm.weight"},
      // With norms before attention and FFN only, Hugging Face gives the FFN's this name.
      {"post_attention_layernorm.weight", "post_attention_norm.weight"},
      {"post_attention_layernorm.weight", "ffn_norm.weight"},
      {"post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
      {"self_attn.q_proj.weight", "attn_q.weight"},
      {"self_attn.k_proj.weight", "attn_k.weight"},
      {"self_attn.v_proj.weight", "attn_v.weight"},
      {"self_attn.q_proj.bias", "attn_q.bias"},
      {"self_attn.k_proj.bias", "attn_k.bias"},
      {"self_attn.v_proj.bias", "attn_v.bias"},
      {"self_attn.q_norm.weight", "attn_q_norm.weight"},
      {"self_attn.k_norm.weight", "attn_k_norm.weight"},
      {"self_attn.o_proj.weight", "attn_output.weight"},
      {"self_attn.o_proj.bias", "attn_output.bias"},
      {"mlp.gate_proj.weight", "ffn_gate.weight"},
      {"mlp.up_proj.weight", "ffn_up.weight"},
      {"mlp.down_proj.weight", "ffn_down.weight"},
  }};
  return kNames;
}

std::string TensorNameOf(const Architecture& architecture, CheckpointFormat format, TensorRole role,
                         int layer) {
  const absl::string_view name = SpellingOf(architecture, role).in(format);
  if (layer < 0) return std::string(name);
  const absl::string_view prefix = format == CheckpointFormat::kGguf ? "blk." : "model.layers.";
  return absl::StrCat(prefix, layer, ".", name);
}

bool UsesRole(const Architecture& architecture, TensorRole role) {
  switch (role) {
    case TensorRole::kPostAttentionNorm:
    case TensorRole::kPostFfnNorm:
      return architecture.norms == LayerNorms::kSandwich;
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return architecture.qk_norm;
    default:
      return true;
  }
}

absl::Status ValidateArchitecture(const Architecture& architecture) {
  RETURN_IF_ERROR(CheckIdentity(architecture));
  if (!architecture.activation.has_value()) {
    return Refuse(architecture, "field activation is not set");
  }
  if (architecture.head_dim < 0 || !(architecture.rope_theta > 0) ||
      !(architecture.windowed_rope_theta.value_or(1.0) > 0)) {
    return Refuse(architecture, "head_dim must not be negative, and RoPE bases must be above 0");
  }
  if (!architecture.keys.attention_scalar.hugging_face.empty() &&
      !(architecture.attention_scalar > 0)) {
    return Refuse(architecture, "keys.attention_scalar needs field attention_scalar above 0");
  }
  if (architecture.windowed_rope_theta.has_value() &&
      architecture.windows.hugging_face == WindowPattern::kNone &&
      architecture.windows.gguf == WindowPattern::kNone) {
    return Refuse(architecture, "windowed_rope_theta is set, but no layer has a window");
  }
  for (const CheckpointFormat format : {CheckpointFormat::kHuggingFace, CheckpointFormat::kGguf}) {
    if (architecture.spelling.in(format).empty()) continue;
    RETURN_IF_ERROR(CheckKeys(architecture, format));
    RETURN_IF_ERROR(CheckWindows(architecture, format));
    RETURN_IF_ERROR(CheckTensorNames(architecture, format));
  }
  return absl::OkStatus();
}

}  // namespace tandem::model
