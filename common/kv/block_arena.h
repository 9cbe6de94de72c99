// The memory of one instance's KV cache: one region per layer, all in one mapping. The arena knows
// where a block lies; BlockPool knows who owns it. For an engine that keeps its KV on a device, the
// arena is the host-side copy through which blocks travel: the receiver marks blocks that arrived
// from another node, and the engine copies marked blocks to the device before it reads them.
//
// Thread safety: any thread may call const methods. A block's lease decides which thread may touch
// the block's bytes.
// Owner: the engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_layout.h"

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
};

class BlockArena {
 public:
  // Maps num_layers regions of num_blocks * layer_block_bytes, zero-filled on first touch. Memory
  // that cannot be shared as asked for is private, and a line in the log says why.
  // Errors: kInvalidArgument for sizes <= 0, kResourceExhausted when the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<BlockArena>> Create(
      const BlockLayout& layout, int64_t num_blocks, ArenaMemory memory = ArenaMemory::kPrivate);
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  const BlockLayout& layout() const { return layout_; }
  int64_t num_blocks() const { return num_blocks_; }
  // One block of one layer, layer_block_bytes long. REQUIRES: `layer` and `block` are in range.
  absl::Span<std::byte> Block(int layer, BlockId block) const;
  // Copies one block of one layer. REQUIRES: as Block; two blocks.
  void CopyBlock(int layer, BlockId from, BlockId to) const;
  // The whole region of a layer, for kernels that index blocks themselves.
  std::byte* LayerRegion(int layer) const;

  // The arena's memory as one range, in the order of the descriptor's bytes.
  absl::Span<const std::byte> bytes() const { return absl::MakeConstSpan(base_, num_bytes_); }
  // A memfd of bytes().size() bytes, sealed against resizing and against every writer but this
  // arena's own mapping; -1 for a private arena. The arena owns it.
  int descriptor() const { return descriptor_; }

  // Marks that bytes of `block` came from another node. REQUIRES: `block` is in range.
  void MarkArrived(BlockId block) const;
  // Whether the block was marked since the last call. A thread that sees the mark sees the bytes
  // that were written before it (release, acquire).
  bool TakeArrived(BlockId block) const;

 private:
  BlockArena(const BlockLayout& layout, int64_t num_blocks);
  const BlockLayout layout_;
  const int64_t num_blocks_;
  absl::Status Map(ArenaMemory memory);
  // Makes and maps a sealed memfd.
  absl::Status MapShareable();

  size_t region_bytes_ = 0;  // from one layer's region to the next one's
  size_t num_bytes_ = 0;
  std::byte* base_ = nullptr;
  int descriptor_ = -1;
  std::unique_ptr<std::atomic<bool>[]> arrived_;  // [num_blocks]
};

}  // namespace tandem::kv
