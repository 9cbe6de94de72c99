// Finds blocks by how they begin. A block that is not full has no hash, so BlockPool's map of full
// blocks cannot find it. Its first rows are a *part*: KV of known tokens that follow a known full
// block. A sequence with the same beginning copies the block instead of computing those rows again
// (docs/adr/0048-a-fork-copies-the-last-block.md).
//
//   parent ──▶ block 7: "the quick brown"     Find(parent, "the quick") = block 7, 2 rows
//          └─▶ block 9: "the slow"            Find(parent, "the slow fox") = block 9, 2 rows
//
// Tokens are compared, not hashed, so a part of other tokens is never found.
//
// Thread safety: none. Owner: a BlockPool, which knows whether a block may be read.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_hash.h"

namespace tandem::kv {

class PartIndex {
 public:
  // The first tokens.size() rows of `block` hold the KV of `tokens`, which follow `parent`: the
  // hash of a full block, or the salt of a chain. Returns false and adds nothing if another block
  // begins with these tokens already, or if kPartsOfParentMax parts follow `parent`.
  // REQUIRES: `block` has no part; `tokens` is not empty.
  bool Add(BlockId block, const BlockHash& parent, absl::Span<const TokenId> tokens);
  // The first `rows` rows of `block` hold the KV of as many of the tokens that were searched for.
  struct Found {
    BlockId block;
    int64_t rows = 0;  // at least 1
  };
  // The block whose part has the longest beginning in common with `tokens`; of several such blocks,
  // the one that was added first. nullopt if none has a row in common.
  // Cost: one comparison for each part that follows `parent`.
  std::optional<Found> Find(const BlockHash& parent, absl::Span<const TokenId> tokens) const;
  bool Contains(BlockId block) const { return parent_of_.contains(block); }
  // No effect on a block without a part.
  void Remove(BlockId block);
  // The blocks whose parts follow `parent`.
  std::vector<BlockId> PartsOf(const BlockHash& parent) const;
  int64_t size() const { return static_cast<int64_t>(parent_of_.size()); }

  // Two searches of the widest, and some that are about to be evicted.
  static constexpr size_t kPartsOfParentMax = 256;

 private:
  struct Part {
    BlockId block;
    std::vector<TokenId> tokens;
  };
  // Bound: --kv-blocks, for both. A parent has kPartsOfParentMax parts, a part a block's tokens.
  absl::flat_hash_map<BlockHash, std::vector<Part>> by_parent_;
  absl::flat_hash_map<BlockId, BlockHash> parent_of_;
};

}  // namespace tandem::kv
