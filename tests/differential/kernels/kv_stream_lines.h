// The cache lines that kernels/cpu/kv_stream.h fetches, as kv_stream_lines.cc records them.
// Thread safety: one thread.
#pragma once

#include <vector>

#include "kernels/api/attention.h"

namespace tandem::kernels::stream_lines {

struct StreamCall {
  const AttentionArgs* args;  // sequences of one row
  int32_t heads;              // of a task
};

// The lines that a stream names from the beginning of `task` on, in their order.
std::vector<const char*> LinesFrom(const StreamCall& call, int64_t task);

}  // namespace tandem::kernels::stream_lines
