#include "common/model/tensor_table.h"

#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/model/dequantize.h"

namespace tandem::model {
namespace {

bool IsRotated(TensorRole role) {
  return role == TensorRole::kQ || role == TensorRole::kK || role == TensorRole::kQBias ||
         role == TensorRole::kKBias;
}

// Tensors that some files contain and the forward pass does not use.
bool IsIgnored(const ModelConfig& config, const Architecture& architecture, CheckpointFormat format,
               absl::string_view name) {
  // Divisors of the rotary frequencies: part of the configuration.
  if (format == CheckpointFormat::kGguf) return name == "rope_freqs.weight";
  return absl::EndsWith(name, "rotary_emb.inv_freq") ||
         (config.tied_embeddings &&
          name == TensorNameOf(architecture, format, TensorRole::kOutput, -1));
}

StoredTensor MakeStored(const ModelConfig& config, const Architecture& architecture,
                        CheckpointFormat format, const ExpectedTensor& expected,
                        const FileTensor& file) {
  const TensorTypeLayout& layout = LayoutOf(file.type);
  StoredTensor stored;
  stored.name = file.name;
  stored.type = file.type;
  stored.rows = expected.rows == 0 ? 1 : expected.rows;
  stored.columns = expected.columns;
  stored.data = file.data;
  stored.scales = file.scales;
  stored.row_bytes = expected.columns / layout.block_elements * layout.block_bytes;
  const bool is_gguf = format == CheckpointFormat::kGguf;
  if (is_gguf && architecture.gguf_permutes_qk && IsRotated(expected.role)) {
    stored.permuted_head_rows = config.head_dim;
  }
  stored.add_one = !is_gguf && architecture.norm_weights_minus_one && IsNorm(expected.role);
  return stored;
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::vector<ExpectedTensor> ExpectedTensors(const ModelConfig& config,
                                            const Architecture& architecture,
                                            CheckpointFormat format) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_rows = int64_t{config.num_heads} * config.head_dim;
  const int64_t kv_rows = int64_t{config.num_kv_heads} * config.head_dim;
  std::vector<ExpectedTensor> expected;
  const auto add = [&](TensorRole role, int layer, int64_t rows, int64_t columns) {
    expected.push_back(
        {role, layer, TensorNameOf(architecture, format, role, layer), rows, columns});
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

absl::StatusOr<TensorTable> TensorTable::Bind(const ModelConfig& config,
                                              const Architecture& architecture,
                                              CheckpointFormat format,
                                              const std::vector<FileTensor>& found) {
  absl::flat_hash_map<absl::string_view, const FileTensor*> unbound;
  for (const FileTensor& tensor : found) {
    if (!unbound.emplace(tensor.name, &tensor).second) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", tensor.name, " occurs twice"));
    }
  }
  TensorTable table;
  table.index_.assign(static_cast<size_t>(config.num_layers) + 1,
                      std::vector<int32_t>(kTensorRoleCount, -1));
  for (const ExpectedTensor& expected : ExpectedTensors(config, architecture, format)) {
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
    table.tensors_.push_back(MakeStored(config, architecture, format, expected, file));
    unbound.erase(at);
  }
  for (const FileTensor& tensor : found) {
    if (unbound.contains(tensor.name) && !IsIgnored(config, architecture, format, tensor.name)) {
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
