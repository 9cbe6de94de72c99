// Implements families::Gemma3 (common/model/architecture/registry.h). Gemma 3 (text): norms before
// and after attention and FFN, local layers with a sliding window and RoPE parameters of their own,
// scaled embeddings.
#include "common/model/architecture/architecture.h"

namespace tandem::model::families {

Architecture Gemma3() {
  return {
      .name = "gemma3",
      .spelling = {"Gemma3ForCausalLM", "gemma3"},
      .keys = {.activation = {"hidden_activation", ""},
               .attention_scalar = {"query_pre_attn_scalar", ""}},
      .tensor_names = {{TensorRole::kFfnNorm,
                        {"pre_feedforward_layernorm.weight", "ffn_norm.weight"}}},
      .activation = Activation::kGeluTanhMul,
      .norms = LayerNorms::kSandwich,
      .qk_norm = true,
      .scaled_embeddings = true,
      .windows = {.hugging_face = WindowPattern::kPeriodic,
                  .gguf = WindowPattern::kPeriodic,
                  .tokens = 4096,
                  .period = 6},
      .rope_theta = 1000000.0,
      .windowed_rope_theta = 10000.0,
      .norm_weights_minus_one = true,
      .head_dim = 256,
      .tied_embeddings = true,
      .attention_scalar = 256.0,
      // Gemma 3 27B, the one size whose scalar is not head_dim.
      .gguf_even_scalar_layers = 62,
  };
}

}  // namespace tandem::model::families
