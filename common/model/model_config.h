// One description of a decoder-only transformer that covers Llama 2/3, SmolLM2, Mistral, Qwen2,
// Qwen3 and Gemma 3. Filled from GGUF metadata or a Hugging Face config.json; read by the forward
// pass. Thread safety: a value. Owner: whoever loaded the checkpoint.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tandem::model {

enum class Activation { kSiluMul, kGeluTanhMul };

// How RoPE's angles are scaled by the checkpoint. Kernels take finished tables, whose frequencies
// RopeInverseFrequencies (rope_frequencies.h) derives from this.
struct RopeScaling {
  // kFactors: the checkpoint brings a divisor for each frequency (a Llama 3 GGUF does).
  enum class Kind { kNone, kLinear, kLlama3, kYarn, kFactors };
  Kind kind = Kind::kNone;
  double factor = 1.0;
  double low_freq_factor = 1.0;          // llama3
  double high_freq_factor = 4.0;         // llama3
  int64_t original_context = 0;          // llama3, yarn; tokens
  double attention_factor = 1.0;         // yarn: multiplies cos and sin
  double beta_fast = 32.0;               // yarn
  double beta_slow = 1.0;                // yarn
  std::vector<float> frequency_factors;  // kFactors: [head_dim / 2]
};

// What differs from layer to layer.
struct LayerConfig {
  // Tokens a row may look back, itself included; 0 = all (a global layer).
  int64_t sliding_window = 0;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
};

struct ModelConfig {
  std::string architecture;  // "llama", "mistral", "qwen2", "qwen3", "gemma3"
  std::string name;          // as the checkpoint names itself
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t ffn_size = 0;
  int32_t vocab_size = 0;
  int32_t context_tokens = 0;  // trained context; prompts + answers never exceed it
  float rms_norm_eps = 1e-5f;
  Activation activation = Activation::kSiluMul;
  bool attention_bias = false;         // q, k and v projections have a bias (Qwen2)
  bool attention_output_bias = false;  // so does o
  bool qk_norm = false;                // RMSNorm of each q and k head before RoPE (Qwen3, Gemma 3)
  bool sandwich_norms = false;         // norms after attention and after FFN too (Gemma 3)
  bool tied_embeddings = false;        // output matrix = token embedding
  float embedding_scale = 1.0f;  // sqrt(hidden_size) for Gemma (rounded as the reference rounds it)
  float attention_scale =
      0.0f;  // multiplies q·k; 1/sqrt(head_dim) unless the checkpoint says otherwise
  std::vector<LayerConfig> layers;  // [num_layers]
};

}  // namespace tandem::model
