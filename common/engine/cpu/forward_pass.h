// The model's forward pass over one batch of rows: embeddings, layers, and logits of the rows that
// sample. One forward pass serves every architecture: what differs (biases, QK-norm, sandwich
// norms, windows, rope, activation) is read from the ModelConfig, which the loader sets from the
// architecture's description (common/model/architecture/architecture.h).
//
// A layer:  h = norm(x); q, k, v = h·Wqkv (+ b); q, k normed by head (QK-norm); rope; k, v → cache
//           x += [norm](attention·Wo (+ b));  h = norm(x); x += [norm]((act(h·Wg) ⊙ h·Wu)·Wd)
// Thread safety: one thread. Owner: the CPU engine.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/aligned_buffer.h"
#include "common/engine/cpu/lent_attention.h"
#include "common/engine/cpu/model_weights.h"
#include "common/engine/remote_attention.h"
#include "common/engine/rope_table.h"
#include "common/kv/block_arena.h"
#include "kernels/api/backend.h"

namespace tandem::engine {

// The rows of a step. Rows of one sequence are consecutive and at consecutive positions.
struct ForwardBatch {
  std::vector<TokenId> tokens;                   // [rows]
  std::vector<int32_t> positions;                // [rows]
  std::vector<std::vector<int32_t>> tables;      // block tables the sequences point into
  std::vector<kernels::SequenceRows> sequences;  // with a pointer into `tables`
  // The same with the windowed layers' tables; empty where they are the same tables.
  std::vector<std::vector<int32_t>> windowed_tables;
  std::vector<kernels::SequenceRows> windowed_sequences;
  // What each sequence has lent, or null; empty when no sequence has lent anything.
  std::vector<RemoteKv*> remote;
  std::vector<int32_t> logit_rows;  // rows whose logits are wanted, ascending
  bool logits_later = false;        // ComputeLogits will be called for others
};

class ForwardPass {
 public:
  struct Options {
    model::ModelConfig config;
    kernels::KvShape kv;
    int64_t context_tokens = 0;
  };
  // Everything is borrowed and must outlive the pass.
  ForwardPass(Options options, const ModelWeights& weights, const kernels::Backend& backend,
              const kernels::ParallelFor& parallel);

  // Outlives the last Forward. REQUIRES: called before a batch has `remote`.
  void SetRemoteAttention(RemoteAttention* peers) { lent_attention_.SetPeers(peers); }

  // Makes room for `rows` rows a step, of which `logit_rows` have logits; returns the bytes held.
  int64_t Reserve(int64_t rows, int64_t logit_rows);

  // Runs all layers over `batch`, writing K and V into `arena`; calls `layer_done` when a layer's
  // are written. Afterwards Logits(i) is the row of batch.logit_rows[i].
  void Forward(const ForwardBatch& batch, const kv::BlockArena& arena,
               absl::FunctionRef<void(int layer)> layer_done);
  absl::Span<const float> Logits(size_t index) const;
  // Logits of other rows of the last batch, which had `logits_later`: Logits(i) is now the row of
  // rows[i]. `rows` ascend. A row's are the same whatever rows it is computed with.
  void ComputeLogits(absl::Span<const int32_t> rows);

 private:
  kernels::KvLayer KvOf(const kv::BlockArena& arena, int layer) const;
  // The batch's sequences, with the layer's block tables.
  const std::vector<kernels::SequenceRows>& SequencesOf(const ForwardBatch& batch, int layer) const;
  void Embed(const ForwardBatch& batch);
  void ComputeKv(const ForwardBatch& batch, int layer, const kernels::KvLayer& kv);
  void Attend(const ForwardBatch& batch, int layer, const kernels::KvLayer& kv);
  void FeedForward(int64_t rows, int layer);

  // Rows of what enters a product: bf16 where weights_.dot_products(), else fp32.
  struct Activations {
    void* data;
    int64_t stride;  // elements
  };
  // y = x·w (+ bias); with `add`, y += it.
  struct Product {
    Activations x;
    int64_t rows;
    const Projection* w;
    bool add;
    float* y;
    int64_t y_stride = 0;  // elements; 0: w's features
  };
  void Multiply(const Product& product);
  void SetInput(const Activations& x, kernels::GemmArgs* args) const;
  // x += w·input, through the sandwich norm `post_norm` where there is one.
  void AddToResidual(const Activations& input, int64_t rows, const Projection& w,
                     const std::vector<float>& post_norm);
  // Norms rows of the residual stream from `first_row` on into rows of h from `to_row` on.
  void Normalise(int64_t first_row, int64_t to_row, int64_t rows, const std::vector<float>& weight);
  kernels::GateActivation Activation() const;
  void MultiplyGated(int64_t rows, const Projection& gate_up);
  void ActivateGated(int64_t rows, const Projection& gate_up);
  void NormaliseHeads(float* x, int64_t rows, int64_t heads, const std::vector<float>& weight);

  const Options options_;
  const ModelWeights& weights_;
  const kernels::Backend& backend_;
  const kernels::ParallelFor parallel_;
  const RopeTables rope_;
  LentAttention lent_attention_;
  const int64_t hidden_;
  const int64_t q_size_;    // heads * head_dim
  const int64_t kv_size_;   // kv_heads * head_dim
  const int64_t qkv_size_;  // q_size + 2 kv_size
  const int64_t h_stride_;  // strides of activations, see PaddedStride
  const int64_t attention_stride_;
  const int64_t gated_stride_;
  const int64_t logits_stride_;

  int64_t reserved_rows_ = 0;
  int64_t reserved_logit_rows_ = 0;
  AlignedBuffer x_;          // [rows][hidden], the residual stream
  AlignedBuffer h_;          // [rows][hidden], normed: activations
  AlignedBuffer qkv_;        // [rows][qkv_size]
  AlignedBuffer attention_;  // [rows][q_size]: activations
  AlignedBuffer gate_up_;    // [rows][2 ffn]; with a fused gate [rows][ffn]: activations
  AlignedBuffer projected_;  // [rows][hidden], sandwich norms only
  AlignedBuffer logits_;     // [logit_rows][logits_stride_]
  AlignedBuffer gemm_scratch_;
  AlignedBuffer attention_scratch_;
};

}  // namespace tandem::engine
