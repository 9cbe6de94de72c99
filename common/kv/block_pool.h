// The owner of each KV block of one instance: a block is free, used, cached or quarantined. The
// pool does no I/O and touches no block's bytes.
//
//   free        ── Allocate ──────────────▶ used
//   used        ── last Unref, sealed ────▶ cached
//   used        ── last Unref, unsealed ──▶ free; cached if it has a part
//   cached      ── Match, PinPart ────────▶ used
//   cached      ── Allocate (evicts) ─────▶ used
//   used        ── Quarantine ────────────▶ quarantined
//   quarantined ── EndQuarantine ─────────▶ free
//
// A *sealed* block is full and immutable, can be found by its hash, and may have many references. A
// block that is not sealed has exactly one owner. Its first rows may be a *part*, which can be
// found by its tokens and copied; readers that copy it have references beside the owner's. A
// *quarantined* block has no owner, but a peer's bytes may still land in it, so the pool does not
// allocate it (docs/KV_TRANSFER.md, "States"). Allocate takes free blocks first, then evicts cached
// ones, the least recently used first. A tenant with a share of the pool that holds more, running
// and cached together, gives back its own cached blocks first. Of blocks cached for their parts
// alone, kCachedPartsMax stay. A block that is being *saved* to storage keeps its bytes until that
// ends, without a reference: Allocate passes over it.
//
// Thread safety: none; the engine thread calls all methods.
// Invariants: free + cached + used + quarantined = total. A hash names at most one block. A block
// has references exactly while it is used. A violation ends the process (TANDEM_CHECK).
// Owner: the node's SequenceScheduler.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_hash.h"
#include "common/kv/block_owners.h"
#include "common/kv/part_index.h"

namespace tandem::kv {

// Changes of the set of full blocks that can be found by hash, for the routers' prefix index.
struct BlockEvents {
  std::vector<BlockHash> stored;   // in the order they were sealed
  std::vector<BlockHash> removed;  // evicted
  // Of `removed`, and of those that were stored and removed since the last call: their contents
  // turned out to be wrong.
  std::vector<BlockHash> wrong;
};

class BlockPool {
 public:
  struct Counts {
    int64_t total = 0, free = 0, cached = 0, used = 0, quarantined = 0;
    int64_t saving = 0;  // of the cached ones
    // The blocks that Allocate can return now.
    int64_t available() const { return free + cached - saving; }
  };

  // Two beam searches of the widest. Parts of older steps are of no use and would displace
  // prefixes.
  static constexpr size_t kCachedPartsMax = 128;

  explicit BlockPool(int64_t num_blocks);

  // Returns `count` used blocks with one reference each, and evicts cached blocks if it must. They
  // count for `owner`. Errors: kResourceExhausted when fewer are available; the pool is then
  // unchanged.
  absl::StatusOr<std::vector<BlockId>> Allocate(int64_t count, const BlockOwner& owner = {});
  // Returns the blocks of the longest prefix of `hashes` that the pool holds, and adds a reference
  // to each of them. Those that count for no tenant count for `owner`.
  std::vector<BlockId> Match(absl::Span<const BlockHash> hashes, const BlockOwner& owner = {});
  // Returns the hashes of up to `count` sealed blocks: first the shared ones, then the cached ones,
  // then those with one owner; within each group recently used blocks and parents come first.
  std::vector<BlockHash> MostRecentlyUsed(int64_t count) const;
  // The length of the longest prefix of `hashes` that the pool holds. Adds no reference.
  int64_t MatchLength(absl::Span<const BlockHash> hashes) const;

  // Adds a reference. REQUIRES: `block` is used and sealed.
  void Ref(BlockId block);
  // Removes a reference. Without references a sealed block becomes cached, another block free.
  void Unref(BlockId block);
  // Marks a used block as full and immutable under `hash`. If another block already has the hash,
  // this one stays unsealed: its owner keeps using it, and its Unref frees it. REQUIRES: `block`
  // has one reference.
  void Seal(BlockId block, const BlockHash& hash);
  bool IsSealed(BlockId block) const;
  // Withdraws a sealed block whose contents turned out to be wrong: its hash finds it no more, and
  // its last Unref makes it free instead of cached. Withdraws a block's part, too. REQUIRES:
  // `block` is used.
  void Forget(BlockId block);

  // The sealed block that `hash` finds; nullopt when there is none.
  std::optional<BlockId> Find(const BlockHash& hash) const;
  // Keeps a sealed block's bytes until EndSave. REQUIRES: Find found it; it is not being saved.
  void BeginSave(BlockId block);
  void EndSave(BlockId block);

  // Says that the first tokens.size() rows of `block` hold the KV of `tokens`, which follow the
  // full block `parent` (or the salt), and will not change. No effect if the block has a part or
  // was forgotten, or if another block begins with these tokens (PartIndex::Add). REQUIRES: `block`
  // is used; tokens is not empty.
  void NamePart(BlockId block, const BlockHash& parent, absl::Span<const TokenId> tokens);
  // A block that begins with the KV of `tokens`, which follow `parent`, with a reference added for
  // the caller, who copies the block. nullopt if there is none. No Seal while the reference lasts.
  std::optional<BlockId> PinPart(const BlockHash& parent, absl::Span<const TokenId> tokens);
  // Whether PinPart would find one.
  bool HasPart(const BlockHash& parent, absl::Span<const TokenId> tokens) const {
    return parts_.Find(parent, tokens).has_value();
  }
  // Withdraws the parts that follow `parent`, because the contents of one turned out to be wrong.
  void ForgetParts(const BlockHash& parent);

  // Removes the only reference of an unsealed block, but does not make it allocatable.
  void Quarantine(BlockId block);
  // Makes a quarantined block free.
  void EndQuarantine(BlockId block);

  Counts counts() const;
  // What tenants hold for whom blocks count. Quarantined blocks count as used.
  std::vector<BlockOwners::Counts> owner_counts() const { return owners_.counts(); }
  // Returns the net changes since the last call: storing and removing the same hash cancel out.
  BlockEvents DrainEvents();
  // The hashes of all sealed blocks, in the order in which they were sealed: the snapshot for a
  // router that joins. A parent precedes its children unless it was evicted and sealed again.
  std::vector<BlockHash> SealedHashes() const;

 private:
  enum class State : uint8_t { kFree, kUsed, kCached, kQuarantined };
  struct Block {
    State state = State::kFree;
    bool sealed = false;
    bool forgotten = false;  // sealed, but Forget() withdrew its hash
    bool saving = false;
    int32_t references = 0;
    BlockHash hash;
    uint64_t sealed_order = 0;
    std::list<BlockId>::iterator lru;   // valid while cached
    std::list<BlockId>::iterator part;  // in cached_parts_; valid while cached and not sealed
    bool findable() const { return sealed && !forgotten; }
  };
  // The pool began (`stored`) or ceased to hold a hash.
  struct Change {
    BlockHash hash;
    bool stored = false;
  };
  Block& At(BlockId block);
  const Block& At(BlockId block) const;
  void Evict(BlockId block);
  void EnterCache(BlockId block);
  void LeaveCache(BlockId block);
  // REQUIRES: the block is neither cached nor counted as used or quarantined.
  void Free(BlockId block);

  // Bound: --kv-blocks, fixed.
  std::vector<Block> blocks_;
  // Bound: --kv-blocks.
  std::vector<BlockId> free_;  // used as a stack
  std::list<BlockId> lru_;     // cached blocks, least recently used first
  absl::flat_hash_map<BlockHash, BlockId> by_hash_;
  PartIndex parts_;
  BlockOwners owners_;
  // Bound: kCachedPartsMax (128).
  std::list<BlockId> cached_parts_;  // those of lru_ that are not sealed, least recently used first
  // Bound: the changes of one step; DrainEvents empties it after each.
  std::vector<Change> changes_;  // since DrainEvents
  std::vector<BlockHash> wrong_;
  int64_t used_ = 0, quarantined_ = 0, saving_cached_ = 0;
  uint64_t next_sealed_order_ = 1;
};

}  // namespace tandem::kv
