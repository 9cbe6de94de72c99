// Who owns each block of one instance: free, cached, used or quarantined. Sans-I/O.
//
//            Allocate                Unref, sealed                Allocate (evicts, least recently
//            used first)
//   free ───────────────▶ used ───────────────────▶ cached ────────────────────────▶ used
//    ▲  ▲                  │ │  ◀───────────────────┘ Match
//    │  └──────────────────┘ └──────▶ quarantined ──▶ free
//    │     Unref, not sealed    Quarantine      EndQuarantine
//
// A *sealed* block is full and immutable, findable by its hash, and may have many references. A
// block that is not sealed has exactly one owner. Quarantined: a peer's bytes may still land in it
// (HANDOFF: Draining).
//
// Thread safety: none; the engine thread owns it.
// Invariants: free + cached + used + quarantined = total (counts() checks); a hash names at most
// one block; reference counts are positive exactly for used blocks. Violations end the process
// (TANDEM_CHECK).
#pragma once

#include <cstdint>
#include <list>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_hash.h"

namespace tandem::kv {

// What routers are told: which full blocks can be found here.
struct BlockEvents {
  std::vector<BlockHash> stored;   // in the order they were sealed
  std::vector<BlockHash> removed;  // evicted
};

class BlockPool {
 public:
  struct Counts {
    int64_t total = 0, free = 0, cached = 0, used = 0, quarantined = 0;
    // What an allocation can be given now.
    int64_t available() const { return free + cached; }
  };

  explicit BlockPool(int64_t num_blocks);

  // `count` blocks with one reference each, or kResourceExhausted and nothing; evicts cached blocks
  // if needed.
  absl::StatusOr<std::vector<BlockId>> Allocate(int64_t count);
  // The longest run of `hashes` from the start that is here, one reference each.
  std::vector<BlockId> Match(absl::Span<const BlockHash> hashes);
  // Hashes of up to `count` sealed blocks: shared ones, then cached ones, then those that one owner
  // uses; recently used ones and parents first.
  std::vector<BlockHash> MostRecentlyUsed(int64_t count) const;
  // How many of `hashes` from the start are here; takes nothing.
  int64_t MatchLength(absl::Span<const BlockHash> hashes) const;

  // One more owner of a used, sealed block.
  void Ref(BlockId block);
  // One owner less; the last one leaves a sealed block cached and another free.
  void Unref(BlockId block);
  // Marks a used block full and immutable under `hash`. If another block already has the hash, this
  // one stays unsealed (its owner goes on using it; it is freed at Unref). REQUIRES: one reference.
  void Seal(BlockId block, const BlockHash& hash);
  bool IsSealed(BlockId block) const;
  // What a sealed block holds turned out to be wrong: nobody finds it any more, and its last owner
  // leaves it free instead of cached. Other blocks: no effect. REQUIRES: used.
  void Forget(BlockId block);

  // Takes the only reference of an unsealed block away without making it allocatable.
  void Quarantine(BlockId block);
  void EndQuarantine(BlockId block);

  Counts counts() const;
  // Everything since the last call; stored and removed of one block cancel out.
  BlockEvents DrainEvents();
  // Hashes of all sealed blocks in the order they were sealed: the snapshot for a new router. A
  // parent comes before its children unless it was evicted and sealed again.
  std::vector<BlockHash> SealedHashes() const;

 private:
  enum class State : uint8_t { kFree, kUsed, kCached, kQuarantined };
  struct Block {
    State state = State::kFree;
    bool sealed = false;
    bool forgotten = false;  // sealed, but its hash no longer names it
    int32_t references = 0;
    BlockHash hash;
    uint64_t sealed_order = 0;
    std::list<BlockId>::iterator lru;  // valid while cached
  };
  // A hash became findable here, or ceased to be.
  struct Change {
    BlockHash hash;
    bool stored = false;
  };
  Block& At(BlockId block);
  const Block& At(BlockId block) const;
  void Evict(BlockId block);

  // Bound: --kv-blocks, fixed.
  std::vector<Block> blocks_;
  // Bound: --kv-blocks.
  std::vector<BlockId> free_;  // used as a stack
  std::list<BlockId> lru_;     // cached blocks, least recently used first
  absl::flat_hash_map<BlockHash, BlockId> by_hash_;
  // Bound: what happened in one step, drained after it.
  std::vector<Change> changes_;  // since DrainEvents
  int64_t used_ = 0, quarantined_ = 0;
  uint64_t next_sealed_order_ = 1;
};

}  // namespace tandem::kv
