// The memory of one instance's KV cache: one region per layer, all in one mapping. The arena knows
// where a block lies; BlockPool knows who owns it. For an engine that keeps its KV on a device, the
// arena is the host-side copy through which blocks travel: the receiver marks blocks that arrived
// from another node or from storage, and the engine copies marked blocks to the device before it
// reads them.
//
// Thread safety: any thread may call const methods. A block's lease decides which thread may touch
// the block's bytes.
// Owner: the engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_layout.h"
#include "common/kv/slot_table.h"

namespace tandem::kv {

enum class ArenaMemory {
  // Of this process alone, in huge pages where the system grants them.
  kPrivate,
  // Behind a descriptor that this process may give to others of its host, who can then read it and
  // never write it. Many systems give such memory small pages only.
  kShareable,
  // kShareable where that costs no huge pages, else kPrivate: for a node whose engine reads its KV
  // much more often than peers do.
  kShareableIfHuge,
  // kPrivate, for which the system sets nothing aside before it is touched: it may be larger than
  // the host's memory. For arenas of which little is used.
  kUnreserved,
};

class BlockArena {
 public:
  // Maps num_layers regions of num_blocks * layer_block_bytes, zero-filled on first touch. Memory
  // that cannot be shared as asked for is private, and a line in the log says why. With
  // `window_slots`, windowed layers have regions of that many blocks, and slots() says which block
  // lies where; with 0 they have room for all blocks, as other layers do.
  // Errors: kInvalidArgument for sizes <= 0 and for window_slots of a layout without windows or
  // above num_blocks, kResourceExhausted when the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<BlockArena>> Create(
      const BlockLayout& layout, int64_t num_blocks, ArenaMemory memory = ArenaMemory::kPrivate,
      int64_t window_slots = 0);
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  const BlockLayout& layout() const { return layout_; }
  int64_t num_blocks() const { return num_blocks_; }
  // The windowed layers' block table; null: they have room for all blocks. Shared with the pool
  // that owns the blocks.
  const std::shared_ptr<SlotTable>& slots() const { return slots_; }
  // Where a block lies in a layer's region, counted in blocks; SlotTable::kNone when the layer has
  // a window and the block no slot. REQUIRES: in range.
  int32_t Place(int layer, BlockId block) const {
    return by_slot_.empty() || !by_slot_[static_cast<size_t>(layer)] ? block.value()
                                                                     : slots_->slot(block);
  }
  // One block of one layer, layer_block_bytes long. REQUIRES: `layer` and `block` are in range, and
  // the block has a slot if the layer's lie in slots.
  absl::Span<std::byte> Block(int layer, BlockId block) const;
  // Copies one block of one layer. REQUIRES: as Block; two blocks.
  void CopyBlock(int layer, BlockId from, BlockId to) const;
  // The whole region of a layer, for kernels that index Places themselves.
  std::byte* LayerRegion(int layer) const;

  // The arena's memory as one range, in the order of the descriptor's bytes.
  absl::Span<const std::byte> bytes() const { return absl::MakeConstSpan(base_, num_bytes_); }
  // A memfd of bytes().size() bytes, sealed against resizing and against every writer but this
  // arena's own mapping; -1 for a private arena. The arena owns it.
  int descriptor() const { return descriptor_; }

  // Marks that bytes of `block` came from another node or from storage. REQUIRES: `block` is in
  // range.
  void MarkArrived(BlockId block) const;
  // Takes the mark: whether the block was marked since the last call. The thread that takes it sees
  // the bytes that were written before the mark (release, acquire). That the mark is gone does not
  // say that the bytes were copied: the engine knows which copies are under way (DeviceKv).
  bool TakeArrived(BlockId block) const;

 private:
  BlockArena(const BlockLayout& layout, int64_t num_blocks, int64_t window_slots);
  const BlockLayout layout_;
  const int64_t num_blocks_;
  std::shared_ptr<SlotTable> slots_;
  // Bound: the layers.
  std::vector<bool> by_slot_;  // [num_layers], or empty: blocks lie in slots
  absl::Status Map(ArenaMemory memory);
  // Makes and maps a sealed memfd.
  absl::Status MapShareable();

  // Bound: the layers.
  std::vector<size_t> regions_;  // where each layer's region begins
  size_t num_bytes_ = 0;
  std::byte* base_ = nullptr;
  int descriptor_ = -1;
  std::unique_ptr<std::atomic<bool>[]> arrived_;  // [num_blocks]
};

}  // namespace tandem::kv
