// Maps block hashes to the nodes that hold the block's KV, so that placement finds the nodes with
// the longest prefix of a prompt. It is soft state: nodes report what they store and remove. A
// wrong entry costs a recomputation, never a wrong token.
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: entries() <= entries_max, counting (hash, node) pairs; a node has at most its own
// bound of entries (a node cannot hold more blocks than its pool); dropping a node costs its own
// entries, not the whole index.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "router/fleet/fleet.h"

namespace tandem::router {

class PrefixIndex {
 public:
  struct Match {
    NodeSlot slot = 0;
    int32_t blocks = 0;  // >= 1: the longest run from the start that the node holds
  };

  explicit PrefixIndex(int64_t entries_max) : entries_max_(entries_max) {}

  // Begins a node, which may have at most `entries_max` entries. REQUIRES: the slot is not in use.
  void AddNode(NodeSlot slot, int64_t entries_max);
  // Drops the node's entries.
  void DropNode(NodeSlot slot);

  // REQUIRES (both): AddNode(slot) before. Storing a hash twice, or removing one that is not there,
  // does nothing. At the node's bound, its own oldest entries are evicted; at the index's bound,
  // those of the least recently used node.
  void Store(NodeSlot slot, absl::Span<const kv::BlockHash> hashes);
  void Remove(NodeSlot slot, absl::Span<const kv::BlockHash> hashes);
  // The node is now the most recently used one: placement chose it for its prefix.
  void Touch(NodeSlot slot);

  // Every node that holds hashes[0], ascending by slot. Cost: one walk over `hashes`.
  std::vector<Match> LongestPrefixes(absl::Span<const kv::BlockHash> hashes) const;

  bool Holds(NodeSlot slot, const kv::BlockHash& hash) const;

  int64_t entries() const { return entries_; }
  int64_t hashes() const { return static_cast<int64_t>(holders_.size()); }
  // Entries dropped because a bound was hit.
  int64_t evicted() const { return evicted_; }

 private:
  // A block hash is uniform already; this only folds it.
  struct OfHash {
    size_t operator()(const kv::BlockHash& hash) const {
      return absl::Hash<uint64_t>()(hash.high ^ hash.low);
    }
  };
  // Ascending. Eight holders fit without an allocation, in the 24 bytes the vector has anyway.
  using Holders = absl::InlinedVector<NodeSlot, 8>;
  struct NodeEntries {
    int64_t entries_max = 0;
    int64_t live = 0;
    uint64_t last_used = 0;
    // Hashes in the order they were stored. May name hashes removed since (skipped when met) and
    // is compacted when more than half of it is stale.
    // Bound: twice the entries of the node.
    std::deque<kv::BlockHash> log;
  };

  bool Insert(NodeSlot slot, const kv::BlockHash& hash);
  bool Erase(NodeSlot slot, const kv::BlockHash& hash);
  void EvictOldest(NodeSlot slot, NodeEntries& node);
  void MakeRoom();
  void Compact(NodeSlot slot, NodeEntries& node);

  const int64_t entries_max_;
  int64_t entries_ = 0;
  int64_t evicted_ = 0;
  uint64_t uses_ = 0;
  // Bound: --index-blocks, then the oldest entries go.
  absl::flat_hash_map<kv::BlockHash, Holders, OfHash> holders_;
  // Bound: one for each joined node.
  absl::flat_hash_map<NodeSlot, NodeEntries> nodes_;
};

}  // namespace tandem::router
