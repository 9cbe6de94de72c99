#include "router/placement/stored_tokens.h"

#include <algorithm>

namespace tandem::router {
namespace {

// The first block in [first, last] for which `holds` is true, as it is for `last` and, once true,
// for those that follow.
template <typename Holds>
int64_t FirstThat(int64_t first, int64_t last, Holds holds) {
  while (first < last) {
    const int64_t middle = (first + last) / 2;
    if (holds(middle))
      last = middle;
    else
      first = middle + 1;
  }
  return first;
}

}  // namespace

ReadTokens StoredTokens(const PrefixIndex& index, const Node& node, int64_t tokens,
                        absl::Span<const kv::BlockHash> hashes) {
  const auto tier_of = [&](int64_t block) {
    return index.TierOn(node.slot, hashes[static_cast<size_t>(block)]);
  };
  const auto stored = [&](int64_t block) {
    const auto tier = tier_of(block);
    return tier == Tier::kHost || tier == Tier::kDisk;
  };
  const int64_t blocks =
      std::min<int64_t>(node.blocks_for(tokens), static_cast<int64_t>(hashes.size()));
  if (node.load.blocks_stored() == 0 || blocks == 0 || !stored(blocks - 1)) return {};
  const int64_t last = blocks - 1;
  // Memory loses a prefix's last blocks first, so those before the first stored one are there.
  const int64_t first = FirstThat(0, last, stored);
  const auto of_last = tier_of(last);
  const int64_t changes =
      FirstThat(first, last, [&](int64_t block) { return tier_of(block) == of_last; });
  const int64_t before = (changes - first) * node.block_tokens;
  const int64_t after = tokens - changes * node.block_tokens;
  if (of_last == Tier::kHost) return {.host = after, .disk = before};
  return {.host = before, .disk = after};
}

}  // namespace tandem::router
