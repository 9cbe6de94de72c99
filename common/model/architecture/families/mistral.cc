// Implements families::Mistral (common/model/architecture/registry.h). Llama with a sliding window
// in every layer. GGUF files of it say "llama".
#include "common/model/architecture/architecture.h"

namespace tandem::model::families {

Architecture Mistral() {
  return {
      .name = "mistral",
      .spelling = {"MistralForCausalLM", ""},
      .activation = Activation::kSiluMul,
      .windows = {.hugging_face = WindowPattern::kEveryLayer, .tokens = 4096},
  };
}

}  // namespace tandem::model::families
