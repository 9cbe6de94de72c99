// Where the windowed layers' bytes of each block lie: the block table of the group of windowed
// layers (block_layout.h). A block without a slot has no room there.
// Thread safety: the engine thread sets slots, any thread may read them. The slot of a block that
// another thread reads or writes does not change: its owner holds a reference to it meanwhile.
// Owner: the arena, shared with the pool's WindowSlots.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/base/ids.h"

namespace tandem::kv {

class SlotTable {
 public:
  static constexpr int32_t kNone = -1;

  // No block has a slot yet.
  SlotTable(int64_t num_blocks, int64_t num_slots)
      : num_blocks_(num_blocks),
        num_slots_(num_slots),
        slots_(std::make_unique<std::atomic<int32_t>[]>(static_cast<size_t>(num_blocks))) {
    for (int64_t i = 0; i < num_blocks; ++i) slots_[i].store(kNone, std::memory_order_relaxed);
  }

  int64_t num_blocks() const { return num_blocks_; }
  int64_t num_slots() const { return num_slots_; }
  // REQUIRES: `block` is in range.
  int32_t slot(BlockId block) const {
    return slots_[block.value()].load(std::memory_order_relaxed);
  }
  void Set(BlockId block, int32_t slot) {
    slots_[block.value()].store(slot, std::memory_order_relaxed);
  }

 private:
  const int64_t num_blocks_, num_slots_;
  const std::unique_ptr<std::atomic<int32_t>[]> slots_;  // [num_blocks]
};

}  // namespace tandem::kv
