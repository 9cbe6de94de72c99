// A checkpoint's weights in device memory: matrices and embeddings in bf16, projections that share
// their input fused, norms and biases in fp32, RoPE tables by absolute position.
// Thread safety: const after loading. Owner: the device engine.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "kernels/api/device.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/parallel.h"

namespace tandem::engine {

// [n][k] in bf16 and the bias that belongs to it.
struct DeviceMatrix {
  int32_t n = 0, k = 0;
  kernels::DeviceBuffer values;
  kernels::DeviceBuffer bias;  // [n], or empty
};

struct DeviceLayerWeights {
  kernels::DeviceBuffer attention_norm, post_attention_norm;  // [hidden]; the second may be empty
  kernels::DeviceBuffer ffn_norm, post_ffn_norm;
  kernels::DeviceBuffer q_norm, k_norm;  // [head_dim], or empty
  DeviceMatrix qkv;                      // q, k, v
  DeviceMatrix o;
  DeviceMatrix gate_up;  // gate, up
  DeviceMatrix down;
  size_t rope_table = 0;  // of DeviceWeights::rope
};

struct DeviceRopeTable {
  kernels::DeviceBuffer cos, sin;  // [context_tokens][head_dim / 2]
};

struct DeviceWeights {
  std::vector<DeviceLayerWeights> layers;
  kernels::DeviceBuffer final_norm;
  DeviceMatrix embedding;  // [vocab][hidden]
  DeviceMatrix output;     // empty where the embedding is also the output matrix
  std::vector<DeviceRopeTable> rope;

  const DeviceMatrix& output_matrix() const { return output.n > 0 ? output : embedding; }
};

struct DeviceWeightsOptions {
  int64_t context_tokens = 0;
};

// Dequantises with `parallel`'s threads and uploads through pinned memory. Errors: the device's.
absl::StatusOr<DeviceWeights> LoadDeviceWeights(const model::Checkpoint& checkpoint,
                                                const DeviceWeightsOptions& options,
                                                kernels::Device& device,
                                                kernels::DeviceStream& stream,
                                                const kernels::ParallelFor& parallel);

}  // namespace tandem::engine
