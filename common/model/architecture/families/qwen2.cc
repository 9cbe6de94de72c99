// Implements families::Qwen2 (common/model/architecture/registry.h). Qwen2 and Qwen2.5, Llama with
// biases on q, k and v.
#include "common/model/architecture/architecture.h"

namespace tandem::model::families {

Architecture Qwen2() {
  return {
      .name = "qwen2",
      .spelling = {"Qwen2ForCausalLM", "qwen2"},
      // The biases are part of the architecture: config.json has no key for them.
      .keys = {.qkv_bias = {}, .output_bias = {}},
      .activation = Activation::kSiluMul,
      .windows = {.hugging_face = WindowPattern::kDeepLayers, .tokens = 4096, .full_layers = 28},
      .qkv_bias = true,
  };
}

}  // namespace tandem::model::families
