#include "common/engine/cpu/forward_pass.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"

namespace tandem::engine {

namespace {

// A row's stride, for elements of 2 or 4 bytes. Rows a multiple of 2 KiB apart compete for the same
// cache sets, so such rows get 64 bytes of padding.
int64_t PaddedStride(int64_t size, bool bf16) {
  return bf16 && size % 1024 == 0 ? size + 32 : size;
}
int64_t PaddedFloats(int64_t size) { return size % 512 == 0 ? size + 16 : size; }

}  // namespace

ForwardPass::ForwardPass(Options options, const ModelWeights& weights,
                         const kernels::Backend& backend, const kernels::ParallelFor& parallel)
    : options_(std::move(options)),
      weights_(weights),
      backend_(backend),
      parallel_(parallel),
      rope_(options_.config, options_.context_tokens),
      lent_attention_(backend, parallel),
      hidden_(options_.config.hidden_size),
      q_size_(int64_t{options_.config.num_heads} * options_.config.head_dim),
      kv_size_(int64_t{options_.config.num_kv_heads} * options_.config.head_dim),
      qkv_size_(q_size_ + 2 * kv_size_),
      h_stride_(PaddedStride(hidden_, weights.dot_products())),
      attention_stride_(PaddedStride(q_size_, weights.dot_products())),
      gated_stride_(weights.fused_gate() ? PaddedStride(weights.layers()[0].gate_up.shape.n / 2,
                                                        weights.dot_products())
                                         : 2 * int64_t{options_.config.ffn_size}),
      logits_stride_(PaddedFloats(options_.config.vocab_size)) {}

int64_t ForwardPass::Reserve(int64_t rows, int64_t logit_rows) {
  const model::ModelConfig& config = options_.config;
  rows = std::max(rows, reserved_rows_);
  logit_rows = std::max(logit_rows, reserved_logit_rows_);
  const auto grow = [](AlignedBuffer* buffer, int64_t count, int64_t width) {
    const size_t bytes = static_cast<size_t>(count * width) * sizeof(float);
    if (bytes > buffer->bytes()) *buffer = AlignedBuffer(bytes);
  };
  if (rows > reserved_rows_) {
    grow(&x_, rows, hidden_);
    // Activations in bf16 take half of this.
    grow(&h_, rows, h_stride_);
    grow(&qkv_, rows, qkv_size_);
    grow(&attention_, rows, attention_stride_);
    grow(&gate_up_, rows, gated_stride_);
    if (config.sandwich_norms) grow(&projected_, rows, hidden_);
    const int64_t widest = std::max({hidden_, q_size_, int64_t{config.ffn_size}});
    grow(&gemm_scratch_, 1, static_cast<int64_t>(kernels::GemmScratchBytes(rows, widest)) / 4);
    attention_scratch_ = AlignedBuffer(kernels::AttentionScratchBytes(
        {config.num_heads, options_.kv, static_cast<int32_t>(rows),
         static_cast<int32_t>(options_.context_tokens), parallel_.num_workers}));
  }
  if (logit_rows > reserved_logit_rows_) grow(&logits_, logit_rows, logits_stride_);
  reserved_rows_ = rows;
  reserved_logit_rows_ = logit_rows;
  int64_t bytes = 0;
  for (const AlignedBuffer* buffer : {&x_, &h_, &qkv_, &attention_, &gate_up_, &projected_,
                                      &logits_, &gemm_scratch_, &attention_scratch_}) {
    bytes += static_cast<int64_t>(buffer->bytes());
  }
  return bytes;
}

void ForwardPass::Forward(const ForwardBatch& batch, const kv::BlockArena& arena,
                          absl::FunctionRef<void(int layer)> layer_done) {
  const int64_t rows = static_cast<int64_t>(batch.tokens.size());
  Reserve(rows, static_cast<int64_t>(batch.logit_rows.size()));
  Embed(batch);
  const int num_layers = options_.config.num_layers;
  for (int layer = 0; layer < num_layers; ++layer) {
    const kernels::KvLayer kv = KvOf(arena, layer);
    ComputeKv(batch, layer, kv);
    layer_done(layer);
    // No later step reads the last layer's results of rows that do not sample.
    if (layer + 1 == num_layers && batch.logit_rows.empty() && !batch.logits_later) return;
    Attend(batch, layer, kv);
    FeedForward(rows, layer);
  }
  if (!batch.logit_rows.empty()) ComputeLogits(batch.logit_rows);
}

absl::Span<const float> ForwardPass::Logits(size_t index) const {
  const size_t vocab = static_cast<size_t>(options_.config.vocab_size);
  return absl::MakeConstSpan(logits_.floats() + index * static_cast<size_t>(logits_stride_), vocab);
}

kernels::KvLayer ForwardPass::KvOf(const kv::BlockArena& arena, int layer) const {
  return {options_.kv, arena.LayerRegion(layer), arena.layout().layer_block_bytes};
}

const std::vector<kernels::SequenceRows>& ForwardPass::SequencesOf(const ForwardBatch& batch,
                                                                   int layer) const {
  const bool windowed = options_.config.layers[static_cast<size_t>(layer)].sliding_window > 0;
  return windowed && !batch.windowed_sequences.empty() ? batch.windowed_sequences : batch.sequences;
}

void ForwardPass::Embed(const ForwardBatch& batch) {
  const int64_t rows = static_cast<int64_t>(batch.tokens.size());
  parallel_(rows, [&](int64_t row, int) {
    weights_.ReadEmbedding(batch.tokens[static_cast<size_t>(row)],
                           absl::MakeSpan(x_.floats() + row * hidden_, hidden_));
  });
  const float scale = options_.config.embedding_scale;
  if (scale != 1.0f) backend_.scale(x_.floats(), scale, rows * hidden_, parallel_);
}

void ForwardPass::ComputeKv(const ForwardBatch& batch, int layer, const kernels::KvLayer& kv) {
  const model::ModelConfig& config = options_.config;
  const LayerWeights& w = weights_.layers()[static_cast<size_t>(layer)];
  const int64_t rows = static_cast<int64_t>(batch.tokens.size());
  Normalise(0, 0, rows, w.attention_norm);
  float* q = qkv_.floats();
  float* k = q + q_size_;
  float* v = k + kv_size_;
  Multiply({{h_.data(), h_stride_}, rows, &w.qkv, false, q});
  if (!w.q_norm.empty()) NormaliseHeads(q, rows, config.num_heads, w.q_norm);
  if (!w.k_norm.empty()) NormaliseHeads(k, rows, config.num_kv_heads, w.k_norm);
  const RopeTable& table = rope_.ForLayer(layer);
  kernels::RopeArgs rope;
  rope.x_stride = qkv_size_;
  rope.rows = rows;
  rope.head_dim = config.head_dim;
  rope.positions = batch.positions.data();
  rope.cos = table.cos.data();
  rope.sin = table.sin.data();
  // q and k lie side by side: heads of both in one call.
  rope.x = q;
  rope.num_heads = config.num_heads + config.num_kv_heads;
  backend_.rope(rope, parallel_);
  kernels::KvWriteArgs write;
  write.k = k;
  write.v = v;
  write.k_stride = write.v_stride = qkv_size_;
  write.layer = kv;
  write.sequences = SequencesOf(batch, layer).data();
  write.num_sequences = static_cast<int32_t>(batch.sequences.size());
  backend_.kv_write(write, parallel_);
}

void ForwardPass::Attend(const ForwardBatch& batch, int layer, const kernels::KvLayer& kv) {
  const model::ModelConfig& config = options_.config;
  const LayerWeights& w = weights_.layers()[static_cast<size_t>(layer)];
  kernels::AttentionArgs args;
  args.q = qkv_.floats();
  args.q_stride = qkv_size_;
  args.num_heads = config.num_heads;
  args.scale = config.attention_scale;
  args.sliding_window =
      static_cast<int32_t>(config.layers[static_cast<size_t>(layer)].sliding_window);
  args.layer = kv;
  args.sequences = SequencesOf(batch, layer).data();
  args.num_sequences = static_cast<int32_t>(batch.sequences.size());
  if (weights_.dot_products()) {
    args.out_bf16 = static_cast<uint16_t*>(attention_.data());
  } else {
    args.out = attention_.floats();
  }
  args.out_stride = attention_stride_;
  args.scratch = attention_scratch_.data();
  args.scratch_bytes = attention_scratch_.bytes();
  // Layers with a window look at no lent token.
  if (batch.remote.empty() || args.sliding_window > 0) {
    backend_.attention(args, parallel_);
  } else {
    lent_attention_.Attend(args, batch.remote, layer);
  }
  AddToResidual({attention_.data(), attention_stride_}, static_cast<int64_t>(batch.tokens.size()),
                w.o, w.post_attention_norm);
}

void ForwardPass::FeedForward(int64_t rows, int layer) {
  const LayerWeights& w = weights_.layers()[static_cast<size_t>(layer)];
  Normalise(0, 0, rows, w.ffn_norm);
  if (weights_.fused_gate()) {
    MultiplyGated(rows, w.gate_up);
  } else {
    ActivateGated(rows, w.gate_up);
  }
  AddToResidual({gate_up_.data(), gated_stride_}, rows, w.down, w.post_ffn_norm);
}

// gate_up = act(h·gate) · (h·up), in one product.
void ForwardPass::MultiplyGated(int64_t rows, const Projection& gate_up) {
  kernels::GemmArgs args;
  SetInput({h_.data(), h_stride_}, &args);
  args.rows = rows;
  args.w = gate_up.matrix();
  if (weights_.dot_products()) {
    args.gated_bf16 = static_cast<uint16_t*>(gate_up_.data());
  } else {
    args.gated = gate_up_.floats();
  }
  args.activation = Activation();
  args.y_stride = gated_stride_;
  args.scratch = gemm_scratch_.data();
  backend_.gemm(args, parallel_);
}

// The same in two operators; the result overwrites gate.
void ForwardPass::ActivateGated(int64_t rows, const Projection& gate_up) {
  const int64_t ffn = options_.config.ffn_size;
  Multiply({{h_.data(), h_stride_}, rows, &gate_up, false, gate_up_.floats()});
  kernels::GatedActivationArgs args;
  args.activation = Activation();
  args.gate = gate_up_.floats();
  args.up = gate_up_.floats() + ffn;
  args.y = gate_up_.floats();
  args.gate_stride = args.up_stride = args.y_stride = gated_stride_;
  args.rows = rows;
  args.size = ffn;
  backend_.gated_activation(args, parallel_);
}

kernels::GateActivation ForwardPass::Activation() const {
  return options_.config.activation == model::Activation::kSiluMul
             ? kernels::GateActivation::kSilu
             : kernels::GateActivation::kGeluTanh;
}

void ForwardPass::ComputeLogits(absl::Span<const int32_t> rows) {
  const int64_t count = static_cast<int64_t>(rows.size());
  Reserve(reserved_rows_, count);
  for (int64_t i = 0; i < count; ++i) {
    Normalise(rows[static_cast<size_t>(i)], i, 1, weights_.final_norm());
  }
  Multiply(
      {{h_.data(), h_stride_}, count, &weights_.output(), false, logits_.floats(), logits_stride_});
}

void ForwardPass::SetInput(const Activations& x, kernels::GemmArgs* args) const {
  if (weights_.dot_products()) {
    args->x_bf16 = static_cast<const uint16_t*>(x.data);
  } else {
    args->x = static_cast<const float*>(x.data);
  }
  args->x_stride = x.stride;
}

void ForwardPass::Multiply(const Product& product) {
  kernels::GemmArgs args;
  SetInput(product.x, &args);
  args.rows = product.rows;
  args.w = product.w->matrix();
  args.bias = product.w->bias_or_null();
  args.add_to_y = product.add;
  args.y = product.y;
  args.y_stride = product.y_stride == 0 ? product.w->shape.n : product.y_stride;
  args.scratch = gemm_scratch_.data();
  backend_.gemm(args, parallel_);
}

void ForwardPass::AddToResidual(const Activations& input, int64_t rows, const Projection& w,
                                const std::vector<float>& post_norm) {
  if (post_norm.empty()) {
    Multiply({input, rows, &w, true, x_.floats()});
    return;
  }
  Multiply({input, rows, &w, false, projected_.floats()});
  kernels::RmsNormArgs args;
  args.x = projected_.floats();
  args.x_stride = args.y_stride = args.size = hidden_;
  args.rows = rows;
  args.weight = post_norm.data();
  args.eps = options_.config.rms_norm_eps;
  args.residual = x_.floats();
  backend_.rms_norm(args, parallel_);
}

void ForwardPass::Normalise(int64_t first_row, int64_t to_row, int64_t rows,
                            const std::vector<float>& weight) {
  kernels::RmsNormArgs args;
  args.x = x_.floats() + first_row * hidden_;
  args.x_stride = args.size = hidden_;
  args.rows = rows;
  args.weight = weight.data();
  args.eps = options_.config.rms_norm_eps;
  args.y_stride = h_stride_;
  if (weights_.dot_products()) {
    args.y_bf16 = static_cast<uint16_t*>(h_.data()) + to_row * h_stride_;
  } else {
    args.y = h_.floats() + to_row * h_stride_;
  }
  backend_.rms_norm(args, parallel_);
}

void ForwardPass::NormaliseHeads(float* x, int64_t rows, int64_t heads,
                                 const std::vector<float>& weight) {
  kernels::RmsNormArgs args;
  args.x = x;
  args.x_stride = args.y_stride = qkv_size_;
  args.rows = rows;
  args.groups = heads;
  args.size = options_.config.head_dim;
  args.weight = weight.data();
  args.eps = options_.config.rms_norm_eps;
  args.y = x;
  backend_.rms_norm(args, parallel_);
}

}  // namespace tandem::engine
