// The scales of fp8 (e4m3) matrices in Hugging Face checkpoints: which scales the configuration
// declares, and their values. Four layouts are supported: compressed-tensors (llm-compressor), fp8
// (AutoFP8, DeepSeek-V3, Qwen3-FP8), fbgemm_fp8 and ModelOpt. The tensors' types say which matrices
// are fp8; the configuration's lists of modules are not read.
//
// A checkpoint may also have scales of activations and of KV caches. They are not used: the flag
// --weights decides whether activations are rounded, and the KV cache computes one scale per token
// and head.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/model/tensor_table.h"
#include "nlohmann/json.hpp"

namespace tandem::model {

// The scales that a configuration allows for.
struct Fp8Scheme {
  std::string method;  // "compressed-tensors", "fp8", ..., for messages
  bool per_tensor = false, per_channel = false;
  int64_t block_rows = 0, block_columns = 0;  // 0: no blocks

  bool in_blocks() const { return block_rows > 0; }
};

// Reads the key "quantization_config" ("compression_config" in older files) of a config.json;
// nullopt when there is none. Errors: kUnimplemented for another method or for weights that are not
// e4m3 with scales of a kind above, kInvalidArgument for what is malformed; each names the key.
absl::StatusOr<std::optional<Fp8Scheme>> ParseQuantization(const nlohmann::json& config);

// As ParseQuantization, of a ModelOpt checkpoint's hf_quant_config.json.
absl::StatusOr<Fp8Scheme> ParseModelOptFile(const nlohmann::json& file);

// Gives every fp8 tensor of a checkpoint its scales, and removes the tensors that hold scales.
// Errors: kInvalidArgument for an fp8 tensor that is not a matrix, without scheme or scale or with
// a scale of another shape; for a scale that is not above 0, so large that products overflow, or
// belongs to no fp8 tensor. Each names the tensor, what was found and what was expected.
absl::Status AttachScales(const std::optional<Fp8Scheme>& scheme, std::vector<FileTensor>& tensors);

}  // namespace tandem::model
