// The checks that every PartialAttention makes on a question before it touches memory: questions
// come from other processes.
// Thread safety: pure functions.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "common/engine/remote_attention.h"

namespace tandem::engine {

// Rows that ask lie before this position. It is no node's context: a debtor's may be longer than
// its creditor's. Kernels compute with positions of 32 bits, and round them up.
inline constexpr int64_t kPositionsMax = int64_t{1} << 30;

struct PartialLimits {
  int32_t num_layers = 0;
  int32_t unit_tokens = 0;
  int32_t block_tokens = 0;
  int64_t num_blocks = 0;
  int64_t q_floats = 0;
};

// Errors: kInvalidArgument, naming what is out of range and what was expected: the layer; units
// that are none or not before the first row; rows beyond kPositionsMax; the number of blocks, a
// block's id; the number of query floats.
absl::Status CheckQuery(const PartialQuery& query, const PartialLimits& limits);

// Of a query that CheckQuery takes. Errors: kInvalidArgument when the layer has a window, because
// its KV is never lent, or when the answer has room for another number of bytes than it needs.
absl::Status CheckAnswer(const PartialQuery& query, bool has_window, int64_t room_bytes,
                         int64_t needed_bytes);

}  // namespace tandem::engine
