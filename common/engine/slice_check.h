// The checks that every engine makes on a batch before a step touches memory.
// Thread safety: a pure function.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/engine/engine.h"

namespace tandem::engine {

// Whether some of the slice's KV lies with creditors.
inline bool HasLent(const SequenceSlice& slice) {
  return slice.remote != nullptr && !slice.remote->lent.empty();
}

// Errors: kInvalidArgument, naming the slice and the REQUIRES of SequenceSlice that it breaks:
// ranges, block table length, block ids against `num_blocks`, new token ids against the vocabulary,
// two slices that write one block, forks, lent units.
absl::Status CheckSlices(absl::Span<const SequenceSlice> slices, const EngineSpec& spec,
                         int64_t num_blocks);
// As CheckSlices, and that the blocks which windowed layers read, write or copy have window slots.
absl::Status CheckSlices(absl::Span<const SequenceSlice> slices, const EngineSpec& spec,
                         const kv::BlockArena& arena);

}  // namespace tandem::engine
