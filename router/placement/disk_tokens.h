// How much of a prompt's beginning a node holds in its storage and not in memory. Thread safety:
// none; used on the core's strand.
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"

namespace tandem::router {

// Of the first `tokens` of a prompt, which the node holds by the index, those that lie on its disk:
// the last ones. Takes a logarithm of the blocks' number in lookups. `hashes`: of the prompt's
// blocks.
int64_t DiskTokens(const PrefixIndex& index, const Node& node, int64_t tokens,
                   absl::Span<const kv::BlockHash> hashes);

}  // namespace tandem::router
