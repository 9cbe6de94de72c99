// The checks that every PartialAttention makes on a question before it touches memory: questions
// come from other processes.
// Thread safety: a pure function.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/engine/remote_attention.h"

namespace tandem::engine {

struct PartialLimits {
  int32_t num_layers = 0;
  int32_t unit_tokens = 0;
  int32_t block_tokens = 0;
  int64_t num_blocks = 0;
  int64_t context_tokens = 0;
  int64_t q_floats = 0;
};

// Errors: kInvalidArgument, naming what is out of range and what was expected: the layer; units
// that are none or not before the first row; rows beyond the context; the number of blocks, a
// block's id; the number of query floats.
absl::Status CheckQuery(const PartialQuery& query, const PartialLimits& limits);

}  // namespace tandem::engine
