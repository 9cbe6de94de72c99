// The memory of one instance's KV cache: one mapped region per layer. The arena knows where a block
// lies; BlockPool knows who owns it. For an engine that keeps its KV on a device, the arena is the
// host-side copy through which blocks travel: the receiver marks blocks that arrived from another
// node, and the engine copies marked blocks to the device before it reads them.
//
// Thread safety: any thread may call const methods. A block's lease decides which thread may touch
// the block's bytes.
// Owner: the engine.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_layout.h"

namespace tandem::kv {

class BlockArena {
 public:
  // Maps num_layers regions of num_blocks * layer_block_bytes, zero-filled on first touch.
  // Errors: kInvalidArgument for sizes <= 0, kResourceExhausted when the system refuses the memory.
  static absl::StatusOr<std::unique_ptr<BlockArena>> Create(const BlockLayout& layout,
                                                            int64_t num_blocks);
  ~BlockArena();
  BlockArena(const BlockArena&) = delete;
  BlockArena& operator=(const BlockArena&) = delete;

  const BlockLayout& layout() const { return layout_; }
  int64_t num_blocks() const { return num_blocks_; }
  // One block of one layer, layer_block_bytes long. REQUIRES: `layer` and `block` are in range.
  absl::Span<std::byte> Block(int layer, BlockId block) const;
  // The whole region of a layer, for kernels that index blocks themselves.
  std::byte* LayerRegion(int layer) const;

  // Marks that bytes of `block` came from another node. REQUIRES: `block` is in range.
  void MarkArrived(BlockId block) const;
  // Whether the block was marked since the last call. A thread that sees the mark sees the bytes
  // that were written before it (release, acquire).
  bool TakeArrived(BlockId block) const;

 private:
  BlockArena(const BlockLayout& layout, int64_t num_blocks);
  const BlockLayout layout_;
  const int64_t num_blocks_;
  // Bound: the model's layers, fixed.
  std::vector<std::byte*> regions_;               // [num_layers]
  std::unique_ptr<std::atomic<bool>[]> arrived_;  // [num_blocks]
};

}  // namespace tandem::kv
