// A filter that keeps nodes that now have a sequence slot, and blocks for the prompt and one more
// token. Blocks of a cached prefix need no room: the sequence shares them. What a prompt needs
// beyond the node's pool, other nodes must be able to lend. Thread safety: pure function.
#pragma once

#include "router/placement/candidate.h"

namespace tandem::router {

inline bool HasFreeRoom(const LegNeeds& needs, const Candidate& candidate) {
  const Node& node = *candidate.node;
  if (node.max_sequences > 0 && node.sequences() >= node.max_sequences) return false;
  const int64_t beyond = node.blocks_beyond(needs.prompt_tokens);
  if (beyond > 0 && beyond > node.borrow_blocks_now) return false;
  return node.blocks_to_start(needs.prompt_tokens) - candidate.cached_tokens / node.block_tokens <=
         node.blocks_available();
}

}  // namespace tandem::router
