// Cosines and sines of rotary position embedding, by absolute position: angles in double, tables in
// fp32. Layers with the same theta and scaling share one table.
// Thread safety: any thread may call const methods. Owner: the engine.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_config.h"

namespace tandem::engine {

struct RopeTable {
  std::vector<float> cos;  // [context_tokens][head_dim / 2]
  std::vector<float> sin;  // [context_tokens][head_dim / 2]
};

// The most bytes of all tables of a model.
inline constexpr int64_t kRopeTableBytesMax = int64_t{16} << 30;

// Whether the tables of that many positions take at most kRopeTableBytesMax and half of the
// machine's memory. Errors: kInvalidArgument naming both sizes and the largest --context-tokens.
absl::Status CheckRopeTables(const model::ModelConfig& config, int64_t context_tokens);

class RopeTables {
 public:
  RopeTables(const model::ModelConfig& config, int64_t context_tokens);

  const RopeTable& ForLayer(int layer) const { return tables_[table_of_layer_[layer]]; }

 private:
  std::vector<RopeTable> tables_;
  std::vector<size_t> table_of_layer_;  // [num_layers]
};

}  // namespace tandem::engine
