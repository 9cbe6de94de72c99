#include "router/placement/disk_tokens.h"

#include <algorithm>

namespace tandem::router {

int64_t DiskTokens(const PrefixIndex& index, const Node& node, int64_t tokens,
                   absl::Span<const kv::BlockHash> hashes) {
  const auto on_disk = [&](int64_t block) {
    return index.TierOn(node.slot, hashes[static_cast<size_t>(block)]) == Tier::kDisk;
  };
  const int64_t blocks =
      std::min<int64_t>(node.blocks_for(tokens), static_cast<int64_t>(hashes.size()));
  if (node.load.blocks_stored() == 0 || blocks == 0 || !on_disk(blocks - 1)) return 0;
  // Memory loses a prefix's last blocks first, so those before the first one on disk are there.
  int64_t first = 0, last = blocks - 1;  // the first one on disk lies in [first, last]
  while (first < last) {
    const int64_t middle = (first + last) / 2;
    if (on_disk(middle))
      last = middle;
    else
      first = middle + 1;
  }
  return tokens - first * node.block_tokens;
}

}  // namespace tandem::router
