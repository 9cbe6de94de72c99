// The numbers of one decoder-only transformer, as the forward passes need them. A loader sets every
// field from a checkpoint and its architecture's description (architecture/architecture.h);
// afterwards no code asks which architecture it is.
// Thread safety: a value. Owner: the Checkpoint it describes; engines keep copies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/model/architecture/architecture.h"

namespace tandem::model {

// How RoPE's angles are scaled by the checkpoint. Kernels take finished tables, whose frequencies
// RopeInverseFrequencies (rope_frequencies.h) derives from this.
struct RopeScaling {
  // kFactors: the checkpoint has a divisor for each frequency (a Llama 3 GGUF does).
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
  // The number of newest tokens a row sees, its own included; 0 = all (a global layer).
  int64_t sliding_window = 0;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
};

struct ModelConfig {
  std::string architecture;  // Architecture::name
  std::string name;          // as the checkpoint names itself; may be empty
  int32_t num_layers = 0;
  int32_t hidden_size = 0;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;  // divides num_heads
  int32_t head_dim = 0;
  int32_t ffn_size = 0;
  int32_t vocab_size = 0;
  int32_t context_tokens = 0;  // trained context; prompt and answer together never exceed it
  float rms_norm_eps = 1e-5f;
  Activation activation = Activation::kSiluMul;
  bool attention_bias = false;         // q, k and v projections have a bias
  bool attention_output_bias = false;  // so does o
  bool qk_norm = false;                // RMSNorm of each q and k head before RoPE
  bool sandwich_norms = false;         // norms after attention and after FFN, too
  bool tied_embeddings = false;        // output matrix = token embedding
  float embedding_scale = 1.0f;        // multiplies embeddings
  float attention_scale = 0.0f;        // multiplies q·k
  std::vector<LayerConfig> layers;     // [num_layers]
};

// Sets the fields that the architecture alone decides: its name, activation, norms.
void SetStructure(const Architecture& architecture, ModelConfig& config);
// Sets embedding_scale. REQUIRES: hidden_size is set.
void SetEmbeddingScale(const Architecture& architecture, ModelConfig& config);

// Most layers a checkpoint may have; the largest published models have some 130.
inline constexpr int64_t kLayersMax = 1024;

// Checks that every number is in the range that the forward passes support.
// REQUIRES: config.layers has num_layers elements if num_layers is in range.
// Errors: kInvalidArgument naming the number and its range; kUnimplemented for a head_dim that no
// kernel supports.
absl::Status ValidateConfig(const ModelConfig& config);

}  // namespace tandem::model
