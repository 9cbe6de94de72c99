// Who may use the memory of the windowed layers (block_layout.h): which block has a window slot,
// and how many holders need it. The BlockPool decides about whole blocks, and this class about
// their slots alone: a sequence that runs on gives back the slots of blocks that have left its
// window, and keeps the blocks.
//
//   no slot ── Add ─────────────────────────────────▶ held
//   held    ── last Unref, block can be found ──────▶ cached
//   held    ── last Unref, nothing finds the block ─▶ no slot
//   cached  ── Ref ─────────────────────────────────▶ held
//   cached  ── Add for another block (evicts) ──────▶ no slot
//   any     ── Drop ────────────────────────────────▶ no slot
//
// Add takes free slots first, then evicts cached ones, the least recently used first. The block
// whose slot is evicted stays: it is still of use before the window.
//
// Each holder reserves as many slots as it will ever hold at a time before it holds the first one,
// and counts a slot that it shares with others as its own. So a sequence that gives a slot back
// always gets another one, even if other sequences still hold the first: no holder waits for
// another.
//
// Thread safety: none; the engine thread. Owner: the BlockPool.
// Invariants: free + cached + held + quarantined = total; held <= reserved, and reserved +
// quarantined <= total but for holders that just let go; a slot belongs to at most one block. A
// violation ends the process (TANDEM_CHECK).
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/slot_table.h"

namespace tandem::kv {

class WindowSlots {
 public:
  struct Counts {
    int64_t total = 0, free = 0, cached = 0, held = 0, quarantined = 0;
    int64_t reserved = 0;
    // What Reserve can give now.
    int64_t available() const { return total - reserved - quarantined; }
  };

  // `table`: where readers look slots up.
  explicit WindowSlots(std::shared_ptr<SlotTable> table);

  bool Has(BlockId block) const { return table_->slot(block) != SlotTable::kNone; }
  // For a holder of `count` more slots; false, and no change, when fewer are available.
  bool Reserve(int64_t count);
  // Ends a part of a reservation, after its slots were given back or quarantined.
  void Release(int64_t count);
  // Gives each block a slot, with one reference. REQUIRES: distinct blocks without slots; the
  // holder has reserved them.
  void Add(absl::Span<const BlockId> blocks);
  // Adds a reference. REQUIRES: Has(block); the holder has reserved it, or does so next.
  void Ref(BlockId block);
  // Removes a reference. `findable`: a prefix hit may want the slot later. REQUIRES: a reference.
  void Unref(BlockId block, bool findable);
  // Removes all references, and keeps the slot out of use: a peer's bytes may still land there.
  // Drop ends that.
  void Quarantine(BlockId block);
  // The block is free: so is its slot, if it has one. REQUIRES: no references.
  void Drop(BlockId block);
  int32_t references(BlockId block) const { return blocks_[block.value()].references; }

  Counts counts() const;

 private:
  struct Block {
    int32_t references = 0;
    bool cached = false, quarantined = false;
    std::list<BlockId>::iterator lru;  // valid while cached
  };
  Block& At(BlockId block);
  void Free(BlockId block);

  const std::shared_ptr<SlotTable> table_;
  // Bound: --kv-blocks, fixed.
  std::vector<Block> blocks_;
  // Bound: the slots.
  std::vector<int32_t> free_;  // used as a stack
  int64_t reserved_ = 0, quarantined_ = 0;
  std::list<BlockId> lru_;  // blocks whose slots are cached, least recently used first
};

}  // namespace tandem::kv
