// Maps KV blocks to the nodes that hold them, so that placement finds the nodes with the longest
// prefixes of a prompt. It is soft state: nodes report what they store and remove.
//
// The index is lossy. It keeps 64 bits of a block's name, so two blocks may share a tag, and at its
// bound it forgets blocks. A wrong or missing entry costs a recomputation, never a wrong token.
//
// Nodes evict a prefix's last blocks first, so a node that holds block i of a prompt nearly always
// holds those before it. The index relies on that: it searches for the length of a run by doubling
// and halving, and does not look at each block. Where a node has a hole, the run it finds ends at
// the hole or later; the node still holds the first and the last block of that run.
//
// Prefill nodes and decode nodes are found apart; nodes of no group (they drain) are never found.
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: entries() <= entries_max, counting (block, node) pairs; a node has at most its own
// bound of entries; the answers depend on the calls and the seed alone.
// Cost of an entry: 16 bytes in a table that is 35 to 70 % full, so 23 to 46 bytes. A block with
// more than kNarrowMax holders has one row of slots_max / 4 bytes instead.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "router/fleet/holder_table.h"
#include "router/fleet/node_slot.h"
#include "router/fleet/wide_holders.h"

namespace tandem::router {

class PrefixIndex {
 public:
  // A block with more holders than kNarrowMax has a row of bits. When one of its holders stores or
  // removes it and fewer than kWideMin are left, it has single entries again. Until then its row
  // counts as kWideMin entries at the bound.
  static constexpr uint32_t kNarrowMax = 48, kWideMin = 24;

  struct Options {
    int64_t entries_max = 0;
    size_t slots_max = 4096;
    uint64_t seed = 0;  // nodes that do not know it cannot crowd one part of the table
    int tag_bits = 64;  // fewer make tags collide, for tests
  };
  struct Match {
    NodeSlot slot = 0;
    int32_t blocks = 0;  // >= 1: the run from the start that the node holds
  };
  using Matches = std::array<std::vector<Match>, kNodeGroups>;  // by group; longest first

  explicit PrefixIndex(const Options& options);

  // Begins a node, which may have at most `entries_max` entries. REQUIRES: the slot is below
  // slots_max and not in use.
  void AddNode(NodeSlot slot, NodeGroup group, int64_t entries_max);
  void SetGroup(NodeSlot slot, NodeGroup group);
  // Forgets the node and what it holds. Cost: a look at each row, none at single entries.
  void DropNode(NodeSlot slot);

  // REQUIRES (both): AddNode(slot) before. Storing a block again only moves it to `tier`; removing
  // one that is not there does nothing. At the node's bound further blocks are not taken up; at the
  // index's bound, blocks that no placement used recently are forgotten.
  void Store(NodeSlot slot, absl::Span<const kv::BlockHash> hashes, Tier tier = Tier::kDevice);
  void Remove(NodeSlot slot, absl::Span<const kv::BlockHash> hashes);
  // Placement chose the node for these blocks: the index forgets others first.
  void Touch(NodeSlot slot, absl::Span<const kv::BlockHash> hashes);

  // For each group, up to `count` nodes that hold the longest runs from the start. Among nodes with
  // equal runs, those at or after slot `from` come first, then the others: callers draw `from` at
  // random, so that no node is always left out. The groups are searched one after the other.
  Matches DeepestHolders(absl::Span<const kv::BlockHash> hashes, size_t count, NodeSlot from) const;
  // The run from the start that one node holds, in blocks.
  int32_t RunOn(NodeSlot slot, absl::Span<const kv::BlockHash> hashes) const;

  // Where the node keeps the block; nullopt when it does not hold it.
  std::optional<Tier> TierOn(NodeSlot slot, const kv::BlockHash& hash) const;
  // Whether a node of the group holds the block.
  bool HeldBy(NodeGroup group, const kv::BlockHash& hash) const;

  int64_t entries() const { return entries_; }
  // Rows of blocks with many holders: what their memory is for.
  int64_t rows() const { return wide_.rows(); }
  // Entries of the table, stale ones included: what its memory is for.
  int64_t table_entries() const { return table_.size(); }
  // Entries forgotten or not taken up because a bound was hit.
  int64_t evicted() const { return evicted_; }
  // Lengths of runs that DeepestHolders searched for, for tests.
  int64_t lengths_searched() const { return lengths_searched_; }

 private:
  class Search;
  struct NodeState {
    uint32_t generation = 0;
    bool joined = false;
    NodeGroup group = kNoGroup;
    int64_t entries_max = 0;
    int64_t live = 0;
  };

  uint64_t TagOf(const kv::BlockHash& hash) const;
  bool Live(const HolderEntry& entry) const;
  // Whether the entry is stale; frees its row if it has one. Its caller erases it.
  bool IsDead(const HolderEntry& entry);
  bool StoreOne(NodeSlot slot, uint64_t tag, Tier tier);
  bool RemoveOne(NodeSlot slot, uint64_t tag);
  bool AddEntry(const HolderEntry& entry);
  // Turns the tag's single entries into a row, and back.
  std::optional<uint32_t> Widen(uint64_t tag);  // nullopt: they are forgotten
  void Narrow(uint64_t tag, uint32_t row);
  // At the bound: forgets entries until there is room for one more.
  void MakeRoom();
  void Forget(const HolderEntry& entry);
  void ForgetRow(uint32_t row);
  uint8_t TierOfTag(NodeSlot slot, uint64_t tag) const;
  // Places of the table and of rows that are taken, stale ones included.
  int64_t taken() const { return table_.size() + wide_.places(); }

  const Options options_;
  HolderTable table_;
  WideHolders wide_;
  // Bound: the fleet's slots, for both.
  std::vector<NodeState> nodes_;
  std::array<SlotSet, kNodeGroups> in_group_;
  int64_t entries_ = 0;
  int64_t evicted_ = 0;
  mutable int64_t lengths_searched_ = 0;
};

}  // namespace tandem::router
