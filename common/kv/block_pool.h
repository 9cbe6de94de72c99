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
// ones: the one worth least first (eviction_order.h), of equal ones the least recently used. A
// tenant with a share of the pool that holds more, running and cached together, gives back its own
// cached blocks first. Of blocks cached for their parts alone, kCachedPartsMax stay. A block that
// is being *saved* to storage keeps its bytes until that ends, without a reference: Allocate passes
// over it.
//
// Where layers have windows, a block's memory in those layers is a *window slot*, with references
// of its own (window_slots.h): a sequence needs the slots of the blocks in its window alone. A
// prefix of n blocks is found if the pool has those blocks, and the slots of the last
// window_blocks of them; else a shorter one is.
//
// Thread safety: none; the engine thread calls all methods.
// Invariants: free + cached + used + quarantined = total. A hash names at most one block. A block
// has references exactly while it is used. A violation ends the process (TANDEM_CHECK).
// Owner: the node's SequenceScheduler.
#pragma once

#include <algorithm>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/hash/hash.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_hash.h"
#include "common/kv/block_owners.h"
#include "common/kv/eviction_order.h"
#include "common/kv/part_index.h"
#include "common/kv/window_slots.h"

namespace tandem::kv {

// Changes of the set of full blocks that can be found by hash, for the routers' prefix index.
struct BlockEvents {
  std::vector<BlockHash> stored;   // in the order they were sealed
  std::vector<BlockHash> parents;  // of each of `stored`, as Seal was told
  std::vector<BlockHash> removed;  // evicted
  // Of `removed`, and of those that were stored and removed since the last call: their contents
  // turned out to be wrong.
  std::vector<BlockHash> wrong;
};

// The parent of a prompt's block `i`; all zero for the first.
inline BlockHash ParentOf(absl::Span<const BlockHash> hashes, size_t i) {
  return i == 0 ? BlockHash() : hashes[i - 1];
}

// How a block's KV came here, if it was not computed or received for the sequence that has it.
enum class BlockOrigin : uint8_t { kHere = 0, kHostMemory, kDisk, kPeer };

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

  // `slots`: the arena's table, null if layers without windows are all there are. `window_blocks`:
  // the layout's.
  explicit BlockPool(int64_t num_blocks, std::shared_ptr<SlotTable> slots = nullptr,
                     int64_t window_blocks = 0);
  // Its parts refer to each other.
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  // Returns `count` used blocks with one reference each, and evicts cached blocks if it must. They
  // have no window slots, and count for `owner`. Errors: kResourceExhausted when fewer are
  // available; the pool is then unchanged.
  absl::StatusOr<std::vector<BlockId>> Allocate(int64_t count, const BlockOwner& owner = {});
  // Returns the blocks of the longest prefix of `hashes` that is found, and adds a reference to
  // each of them and to the slots of the last window_blocks. Blocks that count for no tenant count
  // for `owner`. UnpinMatched takes both references back.
  std::vector<BlockId> Match(absl::Span<const BlockHash> hashes, const BlockOwner& owner = {});
  // Another prompt goes on from `blocks`: they are worth more once they are cached. REQUIRES: they
  // are used.
  void CountUse(absl::Span<const BlockId> blocks);
  // As Match and MatchLength, for readers of the layers without windows: slots do not count.
  std::vector<BlockId> MatchBlocks(absl::Span<const BlockHash> hashes,
                                   const BlockOwner& owner = {});
  // Returns the hashes of up to `count` sealed blocks: first the shared ones, then the cached ones,
  // then those with one owner; within each group parents come first, and of the cached ones those
  // that are evicted last.
  std::vector<BlockHash> MostRecentlyUsed(int64_t count) const;
  // The length of the longest prefix of `hashes` that is found. Adds no reference.
  int64_t MatchLength(absl::Span<const BlockHash> hashes) const;

  // How many blocks Allocate could return after MatchBlocks of `hashes`, of which all are found.
  int64_t AvailableBeside(absl::Span<const BlockHash> hashes) const;
  // Rises whenever a block may become available that was used, quarantined or being saved.
  uint64_t releases() const { return releases_; }

  // Adds a reference. REQUIRES: `block` is used and sealed.
  void Ref(BlockId block);
  // Removes a reference. Without references a sealed block becomes cached, another block free.
  void Unref(BlockId block);
  // Marks a used block as full and immutable under `hash`. If another block already has the hash,
  // this one stays unsealed: its owner keeps using it, and its Unref frees it. But a block with a
  // window slot takes the hash from one without, unless that is being saved. REQUIRES: `block` has
  // one reference. `parent`: the hash of the block before it; all zero: it is the first, or that is
  // not known.
  void Seal(BlockId block, const BlockHash& hash, const BlockHash& parent = {});
  // Seals a full block that Seal left unsealed, or whose hash another block has taken, if no block
  // has that hash now. No effect on sealed blocks and on those that were forgotten. REQUIRES:
  // `block` is used, and holds the KV of `hash`. `parent`: as Seal.
  void SealAgain(BlockId block, const BlockHash& hash, const BlockHash& parent = {});
  bool IsSealed(BlockId block) const;
  // How the block's KV came here, until TakeOrigin has told it once; kHere from then on, and for
  // blocks of which that was never said. REQUIRES: `block` is used.
  void SetOrigin(BlockId block, BlockOrigin origin) { At(block).origin = origin; }
  BlockOrigin TakeOrigin(BlockId block) {
    return std::exchange(At(block).origin, BlockOrigin::kHere);
  }
  // Withdraws a sealed block whose contents turned out to be wrong: its hash finds it no more, and
  // its last Unref makes it free instead of cached. Withdraws a block's part, too. REQUIRES:
  // `block` is used.
  void Forget(BlockId block);

  // The sealed block that `hash` finds; nullopt when there is none.
  std::optional<BlockId> Find(const BlockHash& hash) const;
  // Keeps a sealed block's bytes until EndSave. REQUIRES: Find found it; it is not being saved;
  // HasSlot.
  void BeginSave(BlockId block);
  void EndSave(BlockId block);

  // Says that the first tokens.size() rows of `block` hold the KV of `tokens`, which follow the
  // full block `parent` (or the salt), and will not change. No effect if the block has a part or
  // was forgotten, or if another block begins with these tokens (PartIndex::Add). REQUIRES: `block`
  // is used; tokens is not empty.
  void NamePart(BlockId block, const BlockHash& parent, absl::Span<const TokenId> tokens);
  // The block that begins with the KV of the most of `tokens`, which follow `parent`, and how many
  // these are (PartIndex::Find). A reference to it and to its slot is added for the caller, who
  // copies the block and then calls UnpinPart. nullopt if there is none. No Seal while the
  // reference lasts.
  std::optional<PartIndex::Found> PinPart(const BlockHash& parent,
                                          absl::Span<const TokenId> tokens);
  void UnpinPart(BlockId block) {
    UnrefSlots({&block, 1});
    ReleaseSlots(1);
    Unref(block);
  }
  // How many of `tokens` PinPart would find; 0: none.
  int64_t PartRows(const BlockHash& parent, absl::Span<const TokenId> tokens) const {
    const std::optional<PartIndex::Found> part = parts_.Find(parent, tokens);
    return part.has_value() && HasSlot(part->block) ? part->rows : 0;
  }
  // Whether the block has several references. A block that is not sealed may then have an owner who
  // writes the rows after its part.
  bool IsShared(BlockId block) const { return At(block).references > 1; }
  // For checkers; 0: the block is not used.
  int32_t references(BlockId block) const { return At(block).references; }
  // Withdraws the parts that follow `parent`, because the contents of one turned out to be wrong.
  void ForgetParts(const BlockHash& parent);

  // ---- window slots. Without windowed layers all blocks count as having theirs, at no cost.
  // Whether the block's KV is there in all layers.
  bool HasSlot(BlockId block) const { return !window_.has_value() || window_->Has(block); }
  // As WindowSlots::Reserve and Release: before a holder takes slots by AddSlots, and before or
  // just after it gets some by Match.
  bool ReserveSlots(int64_t count) { return !window_.has_value() || window_->Reserve(count); }
  void ReleaseSlots(int64_t count) {
    if (window_.has_value()) window_->Release(count);
  }
  // Gives `blocks` a slot each, with a reference. REQUIRES: they are used, not sealed and have no
  // slots; ReserveSlots.
  void AddSlots(absl::Span<const BlockId> blocks);
  // Removes references that AddSlots or Match added. A slot without any stays with a block that can
  // be found, until another block needs it. REQUIRES: before the block's own reference goes.
  void UnrefSlots(absl::Span<const BlockId> blocks);
  // Removes what Match added to `blocks`, leaves first: a prefix stays longer than what follows it.
  void UnpinMatched(absl::Span<const BlockId> blocks);
  // Adds a reference to the block that `hash` finds and to its slot, wherever it lies in a prefix;
  // nullopt when there is no such block with a slot.
  std::optional<BlockId> PinWhole(const BlockHash& hash);
  // Removes the references of blocks whose slots are all pinned, leaves first.
  void UnpinWhole(absl::Span<const BlockId> blocks);
  // Of `count` blocks in a row, the first whose slot Match pins.
  int64_t FirstWindowed(int64_t count) const {
    return window_.has_value() ? std::max<int64_t>(0, count - window_blocks_) : 0;
  }
  bool windowed() const { return window_.has_value(); }
  // Zeros without windowed layers.
  WindowSlots::Counts slot_counts() const {
    return window_.has_value() ? window_->counts() : WindowSlots::Counts();
  }

  // Removes the only reference of an unsealed block, but does not make it allocatable. Its slot
  // keeps it company.
  void Quarantine(BlockId block);
  // Makes a quarantined block free.
  void EndQuarantine(BlockId block);

  Counts counts() const;
  // What tenants hold for whom blocks count. Quarantined blocks count as used.
  std::vector<BlockOwners::Counts> owner_counts() const { return owners_.counts(); }
  // Returns the net changes since the last call: storing and removing the same hash cancel out.
  BlockEvents DrainEvents();
  // Whether there may be some.
  bool has_events() const { return !changes_.empty() || !wrong_.empty(); }
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
    BlockOrigin origin = BlockOrigin::kHere;
    int32_t references = 0;
    uint32_t uses = 1;  // prompts that it served
    BlockHash hash;
    uint64_t sealed_order = 0;
    EvictionOrder::Place order;         // valid while cached
    std::list<BlockId>::iterator part;  // in cached_parts_; valid while cached and not sealed
    bool findable() const { return sealed && !forgotten; }
  };
  // Blocks by their hashes, which are not kept a second time.
  struct HashOf {
    using is_transparent = void;
    const std::vector<Block>& blocks;
    size_t operator()(const BlockHash& hash) const { return absl::Hash<BlockHash>()(hash); }
    size_t operator()(BlockId block) const { return (*this)(blocks[block.value()].hash); }
  };
  struct SameHash {
    using is_transparent = void;
    const std::vector<Block>& blocks;
    bool operator()(BlockId a, BlockId b) const { return (*this)(a, blocks[b.value()].hash); }
    bool operator()(BlockId a, const BlockHash& hash) const {
      return blocks[a.value()].hash == hash;
    }
  };
  // The pool began (`stored`) or ceased to hold a hash.
  struct Change {
    BlockHash hash;
    bool stored = false;
    BlockHash parent;  // of a stored one
  };
  Block& At(BlockId block);
  const Block& At(BlockId block) const;
  void Evict(BlockId block);
  void EnterCache(BlockId block);
  void LeaveCache(BlockId block);
  // A free block that is no longer on the free list. REQUIRES: one is free or cached and evictable.
  BlockId TakeFree(absl::FunctionRef<bool(BlockId)> evictable);
  void AddReference(BlockId block);
  // REQUIRES: the block is neither cached nor counted as used or quarantined, and has no name.
  void Free(BlockId block);
  // As Seal. REQUIRES: the block is used and not sealed.
  void TakeName(BlockId block, const BlockHash& hash, const BlockHash& parent);
  // Withdraws the name of a block without a slot, so that another one can have it; says whether it
  // could.
  bool GiveUpName(BlockId block);

  std::optional<WindowSlots> window_;
  const int64_t window_blocks_;
  const int64_t num_blocks_;
  // Those that were ever used: blocks [0, blocks_.size()). The others are free; their memory, which
  // is reserved, has not been touched. Bound: --kv-blocks.
  std::vector<Block> blocks_;
  // Of blocks_. Bound: --kv-blocks.
  std::vector<BlockId> free_;  // used as a stack
  EvictionOrder cached_;
  // Bound: --kv-blocks.
  absl::flat_hash_set<BlockId, HashOf, SameHash> by_hash_;
  PartIndex parts_;
  BlockOwners owners_;
  // Bound: kCachedPartsMax (128).
  std::list<BlockId>
      cached_parts_;  // those of cached_ that are not sealed, least recently used first
  // Bound: the changes of one step; DrainEvents empties it after each.
  std::vector<Change> changes_;  // since DrainEvents
  std::vector<BlockHash> wrong_;
  int64_t used_ = 0, quarantined_ = 0, saving_cached_ = 0;
  uint64_t next_sealed_order_ = 1;
  uint64_t releases_ = 0;
};

}  // namespace tandem::kv
