// How much of a prompt's beginning a node holds in its storage and not in memory, by tier. Thread
// safety: none; used on the core's strand.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "router/fleet/read_tokens.h"

namespace tandem::router {

// Of the first `tokens` of a prompt, which the node holds by the index, those that lie in its
// storage: the last ones. Takes a logarithm of the blocks' number in lookups, since tiers fill and
// lose a prompt's blocks in order: of those in storage, at most one boundary between host memory
// and disk is found. Where there are more, a price is off. `hashes`: of the prompt's blocks.
ReadTokens StoredTokens(const PrefixIndex& index, const Node& node, int64_t tokens,
                        absl::Span<const kv::BlockHash> hashes);

}  // namespace tandem::router
