#include "common/engine/fork_copies.h"

namespace tandem::engine {

std::vector<BlockCopy> ForkCopies(absl::Span<const SequenceSlice> slices, int32_t block_tokens) {
  std::vector<BlockCopy> copies;
  for (const SequenceSlice& slice : slices) {
    if (!slice.forked_from.has_value()) continue;
    const auto ordinal = static_cast<size_t>(slice.num_computed / block_tokens);
    copies.push_back({.from = *slice.forked_from, .to = slice.blocks[ordinal]});
  }
  return copies;
}

}  // namespace tandem::engine
