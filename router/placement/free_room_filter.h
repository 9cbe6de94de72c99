// Keeps nodes that have a sequence slot and the blocks for the prompt and one more token now.
// Blocks of a cached prefix count as available already (they are reclaimable, or shared for
// nothing).
#pragma once

#include "router/placement/candidate.h"

namespace tandem::router {

inline bool HasFreeRoom(const LegNeeds& needs, const Candidate& candidate) {
  const Node& node = *candidate.node;
  if (node.max_sequences > 0 && node.sequences() >= node.max_sequences) return false;
  return node.blocks_for(needs.prompt_tokens + 1) - candidate.cached_tokens / node.block_tokens <=
         node.blocks_available();
}

}  // namespace tandem::router
