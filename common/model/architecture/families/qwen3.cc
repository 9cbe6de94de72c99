// Implements families::Qwen3 (common/model/architecture/registry.h). Qwen3 (dense), Llama with an
// RMSNorm of each q and k head.
#include "common/model/architecture/architecture.h"

namespace tandem::model::families {

Architecture Qwen3() {
  return {
      .name = "qwen3",
      .spelling = {"Qwen3ForCausalLM", "qwen3"},
      .activation = Activation::kSiluMul,
      .qk_norm = true,
      .windows = {.hugging_face = WindowPattern::kDeepLayers, .tokens = 4096, .full_layers = 28},
      .head_dim = 128,
  };
}

}  // namespace tandem::model::families
