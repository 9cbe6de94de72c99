// The copies of blocks with which a step begins: those of its forks (SequenceSlice::forked_from).
// Thread safety: a pure function.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/engine/engine.h"

namespace tandem::engine {

struct BlockCopy {
  BlockId from, to;
};

// In slice order; empty without forks. REQUIRES: CheckSlices accepted `slices`.
std::vector<BlockCopy> ForkCopies(absl::Span<const SequenceSlice> slices, int32_t block_tokens);

}  // namespace tandem::engine
