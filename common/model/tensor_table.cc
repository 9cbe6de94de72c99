#include "common/model/tensor_table.h"

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/dequantize.h"

namespace tandem::model {
namespace {

constexpr size_t kRoleCount = static_cast<size_t>(TensorRole::kDown) + 1;

struct RoleNames {
  absl::string_view role;
  absl::string_view gguf;          // after "blk.N." in layers
  absl::string_view hugging_face;  // after "model.layers.N." in layers
};

// Indexed by TensorRole. Hugging Face's name of kFfnNorm depends on sandwich_norms.
constexpr RoleNames kRoleNames[kRoleCount] = {
    {"token embedding", "token_embd.weight", "model.embed_tokens.weight"},
    {"output", "output.weight", "lm_head.weight"},
    {"final norm", "output_norm.weight", "model.norm.weight"},
    {"attention norm", "attn_norm.weight", "input_layernorm.weight"},
    {"post-attention norm", "post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"FFN norm", "ffn_norm.weight", "post_attention_layernorm.weight"},
    {"post-FFN norm", "post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    {"q", "attn_q.weight", "self_attn.q_proj.weight"},
    {"k", "attn_k.weight", "self_attn.k_proj.weight"},
    {"v", "attn_v.weight", "self_attn.v_proj.weight"},
    {"q bias", "attn_q.bias", "self_attn.q_proj.bias"},
    {"k bias", "attn_k.bias", "self_attn.k_proj.bias"},
    {"v bias", "attn_v.bias", "self_attn.v_proj.bias"},
    {"q norm", "attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"k norm", "attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"o", "attn_output.weight", "self_attn.o_proj.weight"},
    {"o bias", "attn_output.bias", "self_attn.o_proj.bias"},
    {"gate", "ffn_gate.weight", "mlp.gate_proj.weight"},
    {"up", "ffn_up.weight", "mlp.up_proj.weight"},
    {"down", "ffn_down.weight", "mlp.down_proj.weight"},
};

std::string NameInFile(const ModelConfig& config, TensorNaming naming, TensorRole role, int layer) {
  const RoleNames& names = kRoleNames[static_cast<size_t>(role)];
  if (naming == TensorNaming::kGguf) {
    return layer < 0 ? std::string(names.gguf) : absl::StrCat("blk.", layer, ".", names.gguf);
  }
  if (layer < 0) return std::string(names.hugging_face);
  const bool before_ffn = role == TensorRole::kFfnNorm && config.sandwich_norms;
  return absl::StrCat("model.layers.", layer, ".",
                      before_ffn ? "pre_feedforward_layernorm.weight" : names.hugging_face);
}

bool IsNorm(TensorRole role) {
  switch (role) {
    case TensorRole::kFinalNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kPostAttentionNorm:
    case TensorRole::kFfnNorm:
    case TensorRole::kPostFfnNorm:
    case TensorRole::kQNorm:
    case TensorRole::kKNorm:
      return true;
    default:
      return false;
  }
}

bool IsRotated(TensorRole role) {
  return role == TensorRole::kQ || role == TensorRole::kK || role == TensorRole::kQBias ||
         role == TensorRole::kKBias;
}

// Tensors that files carry and the forward pass has no use for.
bool IsIgnored(const ModelConfig& config, TensorNaming naming, absl::string_view name) {
  // Divisors of the rotary frequencies: part of the configuration.
  if (naming == TensorNaming::kGguf) return name == "rope_freqs.weight";
  return absl::EndsWith(name, "rotary_emb.inv_freq") ||
         (config.tied_embeddings && name == "lm_head.weight");
}

StoredTensor MakeStored(const ModelConfig& config, TensorNaming naming,
                        const ExpectedTensor& expected, const FileTensor& file) {
  const TensorTypeLayout& layout = LayoutOf(file.type);
  StoredTensor stored;
  stored.name = file.name;
  stored.type = file.type;
  stored.rows = expected.rows == 0 ? 1 : expected.rows;
  stored.columns = expected.columns;
  stored.data = file.data;
  stored.scales = file.scales;
  stored.row_bytes = expected.columns / layout.block_elements * layout.block_bytes;
  // GGUF's converter permutes q and k of this architecture only; the others keep Hugging Face's
  // order.
  if (naming == TensorNaming::kGguf && config.architecture == "llama" && IsRotated(expected.role)) {
    stored.permuted_head_rows = config.head_dim;
  }
  stored.add_one = naming == TensorNaming::kHuggingFace && config.architecture == "gemma3" &&
                   IsNorm(expected.role);
  return stored;
}

}  // namespace

absl::string_view TensorRoleName(TensorRole role) {
  return kRoleNames[static_cast<size_t>(role)].role;
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config, TensorNaming naming) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  std::vector<ExpectedTensor> expected;
  const auto add = [&](TensorRole role, int layer, int64_t rows, int64_t columns) {
    expected.push_back({role, layer, NameInFile(config, naming, role, layer), rows, columns});
  };
  add(TensorRole::kTokenEmbedding, -1, config.vocab_size, hidden);
  if (!config.tied_embeddings) add(TensorRole::kOutput, -1, config.vocab_size, hidden);
  add(TensorRole::kFinalNorm, -1, 0, hidden);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    add(TensorRole::kAttentionNorm, layer, 0, hidden);
    add(TensorRole::kQ, layer, q_rows, hidden);
    add(TensorRole::kK, layer, kv_rows, hidden);
    add(TensorRole::kV, layer, kv_rows, hidden);
    if (config.attention_bias) {
      add(TensorRole::kQBias, layer, 0, q_rows);
      add(TensorRole::kKBias, layer, 0, kv_rows);
      add(TensorRole::kVBias, layer, 0, kv_rows);
    }
    if (config.qk_norm) {
      add(TensorRole::kQNorm, layer, 0, config.head_dim);
      add(TensorRole::kKNorm, layer, 0, config.head_dim);
    }
    add(TensorRole::kO, layer, hidden, q_rows);
    if (config.attention_output_bias) add(TensorRole::kOBias, layer, 0, hidden);
    if (config.sandwich_norms) add(TensorRole::kPostAttentionNorm, layer, 0, hidden);
    add(TensorRole::kFfnNorm, layer, 0, hidden);
    add(TensorRole::kGate, layer, config.ffn_size, hidden);
    add(TensorRole::kUp, layer, config.ffn_size, hidden);
    add(TensorRole::kDown, layer, hidden, config.ffn_size);
    if (config.sandwich_norms) add(TensorRole::kPostFfnNorm, layer, 0, hidden);
  }
  return expected;
}

absl::StatusOr<TensorTable> TensorTable::Bind(const ModelConfig& config, TensorNaming naming,
                                              const std::vector<FileTensor>& found) {
  absl::flat_hash_map<absl::string_view, const FileTensor*> unbound;
  for (const FileTensor& tensor : found) {
    if (!unbound.emplace(tensor.name, &tensor).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " occurs twice"));
    }
  }
  TensorTable table;
  table.index_.assign(static_cast<size_t>(config.num_layers) + 1,
                      std::vector<int32_t>(kRoleCount, -1));
  for (const ExpectedTensor& expected : ExpectedTensors(config, naming)) {
    const std::vector<int64_t> shape = expected.rows == 0
                                           ? std::vector<int64_t>{expected.columns}
                                           : std::vector<int64_t>{expected.rows, expected.columns};
    const auto at = unbound.find(expected.name);
    if (at == unbound.end()) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", expected.name, " (",
                                                     TensorRoleName(expected.role), ", shape ",
                                                     ShapeText(shape), ") is missing"));
    }
    const FileTensor& file = *at->second;
    if (file.shape != shape) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", expected.name, " (", TensorRoleName(expected.role),
                       "): expected shape ", ShapeText(shape), ", found ", ShapeText(file.shape)));
    }
    table.index_[static_cast<size_t>(expected.layer + 1)][static_cast<size_t>(expected.role)] =
        static_cast<int32_t>(table.tensors_.size());
    table.tensors_.push_back(MakeStored(config, naming, expected, file));
    unbound.erase(at);
  }
  for (const FileTensor& tensor : found) {
    if (unbound.contains(tensor.name) && !IsIgnored(config, naming, tensor.name)) {
      return absl::UnimplementedError(
          absl::StrCat("tensor ", tensor.name, " ", ShapeText(tensor.shape),
                       " has no place in architecture ", config.architecture, " as supported"));
    }
  }
  return table;
}

const StoredTensor* TensorTable::Find(TensorRole role, int layer) const {
  const size_t row = static_cast<size_t>(layer + 1);
  if (layer < -1 || row >= index_.size()) return nullptr;
  const int32_t index = index_[row][static_cast<size_t>(role)];
  return index < 0 ? nullptr : &tensors_[static_cast<size_t>(index)];
}

}  // namespace tandem::model
