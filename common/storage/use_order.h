// In which order the blocks of a store make room: the one unused for longest that no stored block
// follows. So what is stored of a prefix stays its beginning, and a block is used whenever one that
// follows it is.
//
//   stored   A1 ◀─ A2 ◀─ A3     A3 and B1 can make room; when A3 has gone, A2 takes its place in
//             ◀─ B1             the order if it was used no later
//
// Cost: a search in a tree of the blocks that none follows. No call walks along a prefix.
// Thread safety: none; one thread. Owner: a BlockStore.
// Invariants: the answers depend on the calls alone; of the blocks here, each that has no child
// here is in the order, at the time of its last use.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/kv/block_hash.h"

namespace tandem::storage {

class UseOrder {
 public:
  // The block is stored, and was used just now. Its children may be stored already. `parent`: the
  // block before it; empty: it is the first, or its parent is not known. REQUIRES: it is not here.
  void Add(const kv::BlockHash& hash, const kv::BlockHash& parent);
  // The block was used just now. Without effect if it is not here.
  void Use(const kv::BlockHash& hash);
  // REQUIRES: the block is here.
  void Remove(const kv::BlockHash& hash);

  // Which block makes room for one that follows `parent`. nullopt: none, because all blocks here
  // precede it.
  std::optional<kv::BlockHash> ToRemoveFor(const kv::BlockHash& parent) const;
  // As Add was told; all zero if the block is not here.
  kv::BlockHash ParentOf(const kv::BlockHash& hash) const;
  // Least recently used first.
  std::vector<kv::BlockHash> Hashes() const;

 private:
  struct Block {
    kv::BlockHash parent;
    uint64_t used = 0;  // the last use of it, or of one that followed it and is here no more
  };
  bool IsLeaf(const kv::BlockHash& hash) const { return !children_.contains(hash); }

  uint64_t next_use_ = 1;
  // Bound: the store's slots.
  absl::flat_hash_map<kv::BlockHash, Block> blocks_;
  absl::flat_hash_map<kv::BlockHash, int64_t> children_;  // blocks here that follow it, if any
  std::map<uint64_t, kv::BlockHash> leaves_;              // by their last use
};

}  // namespace tandem::storage
