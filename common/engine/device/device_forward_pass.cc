#include "common/engine/device/device_forward_pass.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_attention.h"
#include "kernels/api/device_embed.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_rms_norm.h"
#include "kernels/api/device_rope_kv.h"

namespace tandem::engine {

using kernels::DeviceBuffer;

DeviceForwardPass::DeviceForwardPass(Options options, const DeviceWeights& weights,
                                     kernels::Device& device, kernels::DeviceStream& stream)
    : options_(std::move(options)),
      weights_(weights),
      device_(device),
      stream_(stream),
      ops_(device.ops()) {
  const std::vector<int32_t> windows = Windows(options_.config);
  for (const model::LayerConfig& layer : options_.config.layers) {
    const auto found = std::find(windows.begin(), windows.end(), layer.sliding_window);
    window_of_layer_.push_back(static_cast<size_t>(found - windows.begin()));
  }
}

std::vector<int32_t> DeviceForwardPass::Windows(const model::ModelConfig& config) {
  std::vector<int32_t> windows;
  for (const model::LayerConfig& layer : config.layers) {
    const int32_t window = static_cast<int32_t>(layer.sliding_window);
    if (std::find(windows.begin(), windows.end(), window) == windows.end()) {
      windows.push_back(window);
    }
  }
  return windows;
}

std::vector<DeviceForwardPass::Need> DeviceForwardPass::Needs(int32_t rows, int32_t logit_rows) {
  const model::ModelConfig& config = options_.config;
  const size_t q_size = static_cast<size_t>(config.num_heads) * config.head_dim;
  const size_t kv_size = static_cast<size_t>(config.num_kv_heads) * config.head_dim;
  const size_t hidden = static_cast<size_t>(config.hidden_size);
  const size_t ffn = static_cast<size_t>(config.ffn_size);
  const size_t row_count = static_cast<size_t>(rows);
  const size_t logit_count = static_cast<size_t>(logit_rows);
  const kernels::DeviceRoundedBytes rounded = RoundedBytesMax(rows, logit_rows);
  return {
      {&x_, row_count * hidden * 4},
      {&h_, row_count * hidden * 2},
      {&qkv_, row_count * (q_size + 2 * kv_size) * 4},
      {&q_, row_count * q_size * 2},
      {&attention_, row_count * q_size * 2},
      {&gated_, row_count * ffn * 2},
      {&projected_, config.sandwich_norms ? row_count * hidden * 4 : 0},
      {&rounded_, rounded.values},
      {&rounded_scales_, rounded.scales},
      {&records_, static_cast<size_t>(options_.records_max) * config.num_heads *
                      static_cast<size_t>(config.head_dim + 2) * 4},
      {&final_, logit_count * hidden * 2},
      {&logits_, logit_count * static_cast<size_t>(config.vocab_size) * 4},
  };
}

absl::StatusOr<int64_t> DeviceForwardPass::Reserve(int32_t rows, int32_t logit_rows) {
  int64_t bytes = 0;
  for (const Need& need : Needs(rows, logit_rows)) {
    RETURN_IF_ERROR(Grow(device_, DeviceBuffer::Kind::kDevice, need.bytes, need.buffer));
    bytes += static_cast<int64_t>(need.buffer->bytes());
  }
  return bytes;
}

void DeviceForwardPass::Release() {
  for (const Need& need : Needs(0, 0)) *need.buffer = DeviceBuffer();
}

void DeviceForwardPass::Enqueue(const DeviceBatch& batch, const Extent& extent,
                                absl::FunctionRef<char*(int layer)> region,
                                absl::FunctionRef<void(int layer)> layer_done) {
  kernels::DeviceEmbedArgs embed;
  embed.tokens = batch.tokens();
  embed.table = weights_.embedding.values.as<kernels::Bf16Bits>();
  embed.scale = options_.config.embedding_scale;
  embed.rows = extent.rows;
  embed.size = options_.config.hidden_size;
  embed.y = x_.as<float>();
  ops_.embed(embed, stream_);
  const int num_layers = options_.config.num_layers;
  for (int layer = 0; layer < num_layers; ++layer) {
    ComputeKv(batch, extent.rows, layer, region(layer));
    layer_done(layer);
    // No later step reads the last layer's results of rows that do not sample.
    if (layer + 1 == num_layers && extent.logit_rows == 0 && !extent.logits_later) return;
    Attend(batch, extent, layer, region(layer));
    FeedForward(extent.rows, layer);
  }
  EnqueueLogits(batch.logit_rows(), extent.logit_rows);
}

kernels::KvLayer DeviceForwardPass::KvOf(char* region) const {
  return {options_.kv, region, options_.layer_block_bytes};
}

void DeviceForwardPass::Normalise(int32_t rows, const DeviceBuffer& weight) {
  kernels::DeviceRmsNormArgs args;
  args.x = x_.as<float>();
  args.weight = weight.as<float>();
  args.eps = options_.config.rms_norm_eps;
  args.rows = rows;
  args.size = options_.config.hidden_size;
  args.y = h_.as<kernels::Bf16Bits>();
  ops_.rms_norm(args, stream_);
}

kernels::DeviceRoundedBytes DeviceForwardPass::RoundedBytesMax(int32_t rows,
                                                               int32_t logit_rows) const {
  kernels::DeviceRoundedBytes most;
  const auto add = [&most](const DeviceMatrix& w, int32_t count) {
    const kernels::DeviceRoundedBytes bytes = kernels::RoundedBytesOf(w.type, count, w.k);
    most = {std::max(most.values, bytes.values), std::max(most.scales, bytes.scales)};
  };
  for (const DeviceLayerWeights& layer : weights_.layers) {
    for (const DeviceMatrix* w : {&layer.qkv, &layer.o, &layer.gate_up, &layer.down}) {
      add(*w, rows);
    }
  }
  add(weights_.output_matrix(), logit_rows);
  return most;
}

kernels::DeviceGemmArgs DeviceForwardPass::PrepareProduct(const Product& product) {
  const DeviceMatrix& w = *product.w;
  kernels::DeviceGemmArgs args;
  args.type = w.type;
  args.x = product.x->as<kernels::Bf16Bits>();
  args.w = w.values.as<kernels::Bf16Bits>();
  args.packed = w.values.data();
  args.scales = w.scales.data();
  args.rows = product.rows;
  args.n = w.n;
  args.k = w.k;
  args.bias = w.bias.bytes() > 0 ? w.bias.as<float>() : nullptr;
  args.multiprocessors = device_.properties().multiprocessors;
  if (kernels::ActivationGroup(w.type) > 0) {
    args.x_rounded = rounded_.data();
    args.x_scales = rounded_scales_.as<float>();
    ops_.quantise({args.x, args.rows, args.k, rounded_.data(), rounded_scales_.as<float>(), w.type},
                  stream_);
  }
  return args;
}

void DeviceForwardPass::Launch(kernels::DeviceGemmArgs args) {
  args.tile = options_.tiles.TileFor(args);
  ops_.gemm(args, stream_);
}

void DeviceForwardPass::Multiply(const Product& product) {
  kernels::DeviceGemmArgs args = PrepareProduct(product);
  args.add_to_y = product.add;
  args.y = product.y->as<float>();
  Launch(args);
}

void DeviceForwardPass::MultiplyGated(const Product& product) {
  kernels::DeviceGemmArgs args = PrepareProduct(product);
  args.gated = product.y->as<kernels::Bf16Bits>();
  args.activation = options_.config.activation == model::Activation::kSiluMul
                        ? kernels::GateActivation::kSilu
                        : kernels::GateActivation::kGeluTanh;
  Launch(args);
}

void DeviceForwardPass::ComputeKv(const DeviceBatch& batch, int32_t rows, int layer, char* region) {
  const DeviceLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  Normalise(rows, w.attention_norm);
  Multiply({&h_, rows, &w.qkv, false, &qkv_});
  const DeviceRopeTable& rope = weights_.rope[w.rope_table];
  kernels::DeviceRopeKvArgs args;
  args.qkv = qkv_.as<float>();
  args.rows = rows;
  args.num_heads = options_.config.num_heads;
  args.q_norm = w.q_norm.as<float>();
  args.k_norm = w.k_norm.as<float>();
  args.eps = options_.config.rms_norm_eps;
  args.positions = batch.positions();
  args.cos = rope.cos.as<float>();
  args.sin = rope.sin.as<float>();
  args.slots = batch.slots();
  args.layer = KvOf(region);
  args.q = q_.as<kernels::Bf16Bits>();
  ops_.rope_kv(args, stream_);
}

void DeviceForwardPass::Attend(const DeviceBatch& batch, const Extent& extent, int layer,
                               char* region) {
  const DeviceLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  const model::ModelConfig& config = options_.config;
  kernels::DeviceAttentionArgs args;
  args.q = q_.as<kernels::Bf16Bits>();
  args.num_heads = config.num_heads;
  args.scale = config.attention_scale;
  args.sliding_window =
      static_cast<int32_t>(config.layers[static_cast<size_t>(layer)].sliding_window);
  args.layer = KvOf(region);
  batch.SetSchedule(window_of_layer_[static_cast<size_t>(layer)], &args);
  if (extent.decode_launch) args.launch = batch.DecodeLaunch(extent.rows);
  args.records = records_.as<float>();
  args.out = attention_.as<kernels::Bf16Bits>();
  args.multiprocessors = device_.properties().multiprocessors;
  // Layers with a window look at no lent token.
  if (extent.lent == nullptr || args.sliding_window > 0) {
    ops_.attention(args, stream_);
  } else {
    extent.lent->Attend({layer, region, args.q, args.out}, [&] { ops_.attention(args, stream_); });
  }
  AddToResidual(attention_, extent.rows, w.o, w.post_attention_norm);
}

void DeviceForwardPass::FeedForward(int32_t rows, int layer) {
  const DeviceLayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
  Normalise(rows, w.ffn_norm);
  MultiplyGated({&h_, rows, &w.gate_up, false, &gated_});
  AddToResidual(gated_, rows, w.down, w.post_ffn_norm);
}

void DeviceForwardPass::AddToResidual(const DeviceBuffer& input, int32_t rows,
                                      const DeviceMatrix& w, const DeviceBuffer& post_norm) {
  if (post_norm.bytes() == 0) {
    Multiply({&input, rows, &w, true, &x_});
    return;
  }
  Multiply({&input, rows, &w, false, &projected_});
  kernels::DeviceRmsNormArgs args;
  args.x = projected_.as<float>();
  args.weight = post_norm.as<float>();
  args.eps = options_.config.rms_norm_eps;
  args.rows = rows;
  args.size = options_.config.hidden_size;
  args.residual = x_.as<float>();
  ops_.rms_norm(args, stream_);
}

void DeviceForwardPass::EnqueueLogits(const int32_t* rows, int32_t count) {
  if (count == 0) return;
  kernels::DeviceRmsNormArgs args;
  args.x = x_.as<float>();
  args.weight = weights_.final_norm.as<float>();
  args.gather = rows;
  args.eps = options_.config.rms_norm_eps;
  args.rows = count;
  args.size = options_.config.hidden_size;
  args.y = final_.as<kernels::Bf16Bits>();
  ops_.rms_norm(args, stream_);
  Multiply({&final_, count, &weights_.output_matrix(), false, &logits_});
}

}  // namespace tandem::engine
