// A checkpoint's weights in device memory: matrices in the requested type, the embedding in bf16,
// projections that share their input fused, norms and biases in fp32, RoPE tables by absolute
// position. Thread safety: const after loading. Owner: the device engine.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/model/checkpoint.h"
#include "kernels/api/device.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/api/parallel.h"

namespace tandem::engine {

// How weights are kept, by the name that --weights has for it. "auto" is kBf16. kInt8: every
// matrix. kInt4 and kFp8: every matrix but the output, which is int8 (errors there are errors of
// the logits). kAsStored: blocks of four bits (Q4_0, Q4_1, Q4_K) and rows of fp8 as they are,
// others in int8. kFp8Rows: as kFp8, but activations in products are e4m3 too.
//
// With kAsStored, kFp8 and kFp8Rows a matrix whose tensors are all stored as fp8 with one scale for
// each row, or for the tensor, keeps the file's codes and scales, the output too (which is then
// multiplied with activations in bf16): nothing is rounded again. fp8 with scales by block has no
// scale for a row. Such weights are rounded like any others: kAsStored rounds them to int8, with a
// third of the error of another rounding to fp8; the others round them to fp8.
enum class DeviceWeightFormat { kBf16, kInt8, kInt4, kAsStored, kFp8, kFp8Rows };

// "fp8" is kFp8Rows on devices that multiply fp8, kFp8 on others; "fp8a16" is kFp8 on all. Errors:
// kInvalidArgument for a name that no device has products for.
absl::StatusOr<DeviceWeightFormat> ParseDeviceWeights(const std::string& name,
                                                      const kernels::DeviceOps& ops);
// What a numerics id says of it: "bf16", "int8", "int4+int8", "fp8+int8", "fp8a8+int8"; of
// kAsStored "stored-fp8+int8" where the checkpoint has rows of fp8, else "stored-int4+int8".
const char* DeviceWeightFormatName(const model::Checkpoint& checkpoint, DeviceWeightFormat format);

// [n][k] as kernels/api/device_matrix.h lays it out, and the bias that belongs to it.
struct DeviceMatrix {
  int32_t n = 0, k = 0;
  kernels::DeviceWeightType type = kernels::DeviceWeightType::kBf16;
  kernels::DeviceBuffer values;
  kernels::DeviceBuffer scales;  // empty for bf16
  kernels::DeviceBuffer bias;    // [n], or empty
};

struct DeviceLayerWeights {
  kernels::DeviceBuffer attention_norm, post_attention_norm;  // [hidden]; the second may be empty
  kernels::DeviceBuffer ffn_norm, post_ffn_norm;
  kernels::DeviceBuffer q_norm, k_norm;  // [head_dim], or empty
  DeviceMatrix qkv;                      // q, k, v
  DeviceMatrix o;
  DeviceMatrix gate_up;  // a row of gate, one of up, and so on
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
  DeviceMatrix output;     // empty where the embedding is also the output matrix, in bf16
  std::vector<DeviceRopeTable> rope;

  const DeviceMatrix& output_matrix() const { return output.n > 0 ? output : embedding; }
};

struct DeviceWeightsOptions {
  int64_t context_tokens = 0;
  DeviceWeightFormat format = DeviceWeightFormat::kBf16;
};

// Dequantises and packs with `parallel`'s threads and uploads through pinned memory. Errors: the
// device's.
absl::StatusOr<DeviceWeights> LoadDeviceWeights(const model::Checkpoint& checkpoint,
                                                const DeviceWeightsOptions& options,
                                                kernels::Device& device,
                                                kernels::DeviceStream& stream,
                                                const kernels::ParallelFor& parallel);

}  // namespace tandem::engine
