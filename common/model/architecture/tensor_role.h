// What a weight tensor is for, whatever a file calls it.
// Thread safety: values and pure functions.
#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace tandem::model {

// The whole model has one tensor of each of the first three roles; each layer has one of each other
// role, if its architecture uses that role.
enum class TensorRole {
  kTokenEmbedding,     // [vocab, hidden]
  kOutput,             // [vocab, hidden]; absent if the output matrix is the token embedding
  kFinalNorm,          // [hidden]
  kAttentionNorm,      // [hidden], before attention
  kPostAttentionNorm,  // [hidden], sandwich norms only: after o, before the residual addition
  kFfnNorm,            // [hidden], before the FFN
  kPostFfnNorm,        // [hidden], sandwich norms only: after down, before the residual addition
  kQ,                  // [heads * head_dim, hidden]
  kK,                  // [kv_heads * head_dim, hidden]
  kV,                  // [kv_heads * head_dim, hidden]
  kQBias,              // [heads * head_dim]
  kKBias,              // [kv_heads * head_dim]
  kVBias,              // [kv_heads * head_dim]
  kQNorm,              // [head_dim]
  kKNorm,              // [head_dim]
  kO,                  // [hidden, heads * head_dim]
  kOBias,              // [hidden]
  kGate,               // [ffn, hidden]
  kUp,                 // [ffn, hidden]
  kDown,               // [hidden, ffn]
};
inline constexpr size_t kTensorRoleCount = static_cast<size_t>(TensorRole::kDown) + 1;

// "token embedding", "q bias": as error messages name the role.
absl::string_view TensorRoleName(TensorRole role);

// Whether the tensor is the weight vector of an RMSNorm.
bool IsNorm(TensorRole role);

// Whether each layer has a tensor of this role, as opposed to one for the whole model.
bool IsPerLayer(TensorRole role);

}  // namespace tandem::model
