// The model's forward pass on a device: the layers of cpu/forward_pass.h with bf16 operands, fp32
// residual stream and logits. Everything is enqueued on one stream and nothing waits, so that a
// pass over rows of one token each can be captured as a graph. Thread safety: one thread. Owner:
// the device engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/engine/device/device_batch.h"
#include "common/engine/device/device_lent_attention.h"
#include "common/engine/device/device_weights.h"
#include "common/engine/device/gemm_tiles.h"
#include "common/model/model_config.h"
#include "kernels/api/device.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_quantise.h"

namespace tandem::engine {

class DeviceForwardPass {
 public:
  struct Options {
    model::ModelConfig config;
    kernels::KvShape kv;
    int64_t layer_block_bytes = 0;
    int32_t records_max = 0;  // DeviceBatchOptions::records_max
    GemmTiles tiles;
  };
  // Everything is borrowed and must outlive the pass.
  DeviceForwardPass(Options options, const DeviceWeights& weights, kernels::Device& device,
                    kernels::DeviceStream& stream);

  // Allocates buffers for steps of this size; those that are large enough stay. Returns the bytes
  // held. Errors: the device's; some buffers are then missing, until Reserve succeeds.
  absl::StatusOr<int64_t> Reserve(int32_t rows, int32_t logit_rows);
  // Frees the buffers.
  void Release();

  // How much of a batch a pass computes. For a graph, `rows` and `logit_rows` are the bucket's.
  struct Extent {
    int32_t rows = 0;
    int32_t logit_rows = 0;
    bool decode_launch = false;  // launch for any batch of `rows` one-token rows, not for this one
    bool logits_later = false;   // EnqueueLogits follows: compute the last layer in any case
    // Of a step in which sequences have lent KV; else nullptr. The pass then waits for creditors.
    DeviceLentAttention* lent = nullptr;
  };
  // `region(layer)` is a layer's KV in device memory. Calls `layer_done(layer)` once the work that
  // writes that layer's KV is enqueued. REQUIRES: Reserve covers `extent`.
  void Enqueue(const DeviceBatch& batch, const Extent& extent,
               absl::FunctionRef<char*(int layer)> region,
               absl::FunctionRef<void(int layer)> layer_done);

  // The logits of `count` rows of the last pass that was enqueued, named by `rows` in device
  // memory. REQUIRES: count ≤ the reserved logit rows.
  void EnqueueLogits(const int32_t* rows, int32_t count);

  // [logit_rows][vocab] in device memory, of the last rows whose logits were enqueued.
  const float* logits() const { return logits_.as<float>(); }

  // The distinct sliding windows of the layers, for DeviceBatch; layers use them by index.
  static std::vector<int32_t> Windows(const model::ModelConfig& config);

 private:
  struct Product {
    const kernels::DeviceBuffer* x;
    int32_t rows;
    const DeviceMatrix* w;
    bool add;
    const kernels::DeviceBuffer* y;
  };
  // A buffer, and the bytes that a step needs of it.
  struct Need {
    kernels::DeviceBuffer* buffer;
    size_t bytes;
  };
  std::vector<Need> Needs(int32_t rows, int32_t logit_rows);
  void Multiply(const Product& product);
  void Launch(kernels::DeviceGemmArgs args);  // with the tile that options_.tiles has for it
  // The same for gate_up: writes act(gate) · up in bf16 to the product's y.
  void MultiplyGated(const Product& product);
  // The arguments of a product; rounds x first where products with w read it rounded.
  kernels::DeviceGemmArgs PrepareProduct(const Product& product);
  // The most bytes that any product of such a step needs for its rounded x.
  kernels::DeviceRoundedBytes RoundedBytesMax(int32_t rows, int32_t logit_rows) const;
  void Normalise(int32_t rows, const kernels::DeviceBuffer& weight);
  void ComputeKv(const DeviceBatch& batch, int32_t rows, int layer, char* region);
  void Attend(const DeviceBatch& batch, const Extent& extent, int layer, char* region);
  void FeedForward(int32_t rows, int layer);
  // x += w·input, through the sandwich norm `post_norm` where there is one.
  void AddToResidual(const kernels::DeviceBuffer& input, int32_t rows, const DeviceMatrix& w,
                     const kernels::DeviceBuffer& post_norm);
  kernels::KvLayer KvOf(char* region) const;

  const Options options_;
  const DeviceWeights& weights_;
  kernels::Device& device_;
  kernels::DeviceStream& stream_;
  const kernels::DeviceOps& ops_;
  std::vector<size_t> window_of_layer_;

  kernels::DeviceBuffer x_;               // [rows][hidden] fp32, the residual stream
  kernels::DeviceBuffer h_;               // [rows][hidden] bf16, normed
  kernels::DeviceBuffer qkv_;             // [rows][q, k, v] fp32
  kernels::DeviceBuffer q_;               // [rows][heads · head_dim] bf16
  kernels::DeviceBuffer attention_;       // [rows][heads · head_dim] bf16
  kernels::DeviceBuffer gated_;           // [rows][ffn] bf16
  kernels::DeviceBuffer projected_;       // [rows][hidden] fp32, sandwich norms only
  kernels::DeviceBuffer rounded_;         // a product's x in int8 or e4m3, where w wants it so
  kernels::DeviceBuffer rounded_scales_;  // and its scales
  kernels::DeviceBuffer records_;         // attention's split partitions
  kernels::DeviceBuffer final_;           // [logit_rows][hidden] bf16
  kernels::DeviceBuffer logits_;          // [logit_rows][vocab] fp32
};

}  // namespace tandem::engine
