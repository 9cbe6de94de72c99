// A checkpoint's weights in the form that the kernels need: matrices packed, projections that share
// their input fused, norms in fp32. All compute threads load them, each dequantising and packing
// ranges of rows; or the file that an earlier start packed is mapped (weight_cache.h). Thread
// safety: const after loading. Owner: the engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/aligned_buffer.h"
#include "common/engine/cpu/weight_cache.h"
#include "common/engine/cpu/weight_format.h"
#include "common/engine/load_progress.h"
#include "common/model/checkpoint.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

// One packed matrix and the bias that belongs to it.
struct Projection {
  kernels::MatrixShape shape;
  const void* packed = nullptr;  // in ModelWeights' storage
  std::vector<float> bias;       // [shape.n] or empty

  kernels::PackedMatrix matrix() const { return {shape, packed}; }
  const float* bias_or_null() const { return bias.empty() ? nullptr : bias.data(); }
};

struct LayerWeights {
  std::vector<float> attention_norm;       // [hidden]
  std::vector<float> post_attention_norm;  // [hidden] or empty
  std::vector<float> ffn_norm;             // [hidden]
  std::vector<float> post_ffn_norm;        // [hidden] or empty
  std::vector<float> q_norm, k_norm;       // [head_dim] or empty
  Projection qkv;                          // [(heads + 2 kv_heads) * head_dim, hidden]: q, k, v
  Projection o;                            // [hidden, heads * head_dim]
  Projection gate_up;                      // [2 ffn, hidden]: gate, up; interleaved if fused_gate()
  Projection down;                         // [hidden, ffn]
};

class ModelWeights {
 public:
  // Loads with `threads`. The object does not keep `checkpoint`.
  ModelWeights(const model::Checkpoint& checkpoint, const kernels::Backend& backend,
               const LoadThreads& threads, WeightFormat format = WeightFormat::kAuto,
               const WeightCacheOptions& cache = {});

  // Why loading failed: kInvalidArgument for a tensor with NaN codes. REQUIRES of every function
  // below: this is OK.
  const absl::Status& status() const { return status_; }

  // Whether every product takes bf16 activations.
  bool dot_products() const { return dot_products_; }
  // Whether gate_up alternates 16 rows of gate and 16 of up, both padded with zero rows to a
  // multiple of 16, as GemmArgs::gated_bf16 (with dot products) and GemmArgs::gated (without) need.
  bool fused_gate() const { return fused_gate_; }

  const std::vector<LayerWeights>& layers() const { return layers_; }
  const std::vector<float>& final_norm() const { return final_norm_; }
  const Projection& output() const { return output_; }
  // The token's embedding, dequantised from its stored row. REQUIRES: a token of the vocabulary,
  // `out` of hidden size.
  void ReadEmbedding(TokenId token, absl::Span<float> out) const;
  // Distinct weight types, for the numerics id: "f32", "bf16", "bf16+f32", "int8",
  // "int4+int8", "stored-int4+int8", "stored-int8+q4k".
  const std::string& TypeNames() const { return type_names_; }
  int64_t bytes() const { return bytes_; }
  // The part of bytes() that lies in a file's mapping, which other processes may share.
  int64_t mapped_bytes() const { return mapped_ == nullptr ? 0 : bytes_; }

 private:
  absl::Status status_;
  bool dot_products_ = false;
  bool fused_gate_ = false;
  std::vector<LayerWeights> layers_;
  std::vector<float> final_norm_;
  Projection output_;
  model::StoredTensor embedding_;  // its data lies in the storage too
  // One of the two holds the packed matrices and the embedding's stored rows.
  AlignedBuffer own_;
  std::unique_ptr<MappedWeights> mapped_;
  int64_t bytes_ = 0;
  std::string type_names_;
};

}  // namespace tandem::engine
