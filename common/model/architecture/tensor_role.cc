#include "common/model/architecture/tensor_role.h"

namespace tandem::model {

absl::string_view TensorRoleName(TensorRole role) {
  // Indexed by TensorRole.
  static constexpr absl::string_view kNames[kTensorRoleCount] = {
      "token embedding",
      "output",
      "final norm",
      "attention norm",
      "post-attention norm",
      "FFN norm",
      "post-FFN norm",
      "q",
      "k",
      "v",
      "q bias",
      "k bias",
      "v bias",
      "q norm",
      "k norm",
      "o",
      "o bias",
      "gate",
      "up",
      "down",
  };
  return kNames[static_cast<size_t>(role)];
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

bool IsPerLayer(TensorRole role) { return role > TensorRole::kFinalNorm; }

}  // namespace tandem::model
