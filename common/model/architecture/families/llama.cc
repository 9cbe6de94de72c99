// Implements families::Llama (common/model/architecture/registry.h). Llama 2 and 3, and models of
// the same architecture such as SmolLM2.
#include "common/model/architecture/architecture.h"

namespace tandem::model::families {

Architecture Llama() {
  return {
      .name = "llama",
      .spelling = {"LlamaForCausalLM", "llama"},
      .activation = Activation::kSiluMul,
      // A GGUF file that says "llama" may hold a Mistral model, whose layers all have a window.
      .windows = {.gguf = WindowPattern::kEveryLayer},
      .gguf_permutes_qk = true,
      .kv_heads_optional = true,
  };
}

}  // namespace tandem::model::families
