#include "common/kv/block_arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace tandem::kv {

BlockArena::BlockArena(const BlockLayout& layout, int64_t num_blocks)
    : layout_(layout),
      num_blocks_(num_blocks),
      arrived_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(num_blocks))) {}

absl::StatusOr<std::unique_ptr<BlockArena>> BlockArena::Create(const BlockLayout& layout,
                                                               int64_t num_blocks) {
  if (layout.num_layers <= 0 || layout.block_tokens <= 0 || layout.layer_block_bytes <= 0 ||
      num_blocks <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV arena: sizes must be positive, got num_layers=", layout.num_layers,
                     " block_tokens=", layout.block_tokens,
                     " layer_block_bytes=", layout.layer_block_bytes, " num_blocks=", num_blocks));
  }
  if (num_blocks > std::numeric_limits<int32_t>::max() ||
      layout.layer_block_bytes > std::numeric_limits<int64_t>::max() / num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat("KV arena: ", num_blocks, " blocks of ",
                                                   layout.layer_block_bytes,
                                                   " bytes a layer exceed the address space"));
  }
  std::unique_ptr<BlockArena> arena(new BlockArena(layout, num_blocks));
  const size_t region_bytes = static_cast<size_t>(num_blocks * layout.layer_block_bytes);
  for (int layer = 0; layer < layout.num_layers; ++layer) {
    void* region =
        ::mmap(nullptr, region_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (region == MAP_FAILED) {
      return absl::ResourceExhaustedError(
          absl::StrCat("KV arena: cannot map ", region_bytes, " bytes for layer ", layer, " of ",
                       layout.num_layers, ": ", std::strerror(errno)));
    }
    // This is only advice: huge pages cause fewer TLB misses, where the system grants them.
    ::madvise(region, region_bytes, MADV_HUGEPAGE);
    arena->regions_.push_back(static_cast<std::byte*>(region));
  }
  return arena;
}

BlockArena::~BlockArena() {
  const size_t region_bytes = static_cast<size_t>(num_blocks_ * layout_.layer_block_bytes);
  for (std::byte* region : regions_) ::munmap(region, region_bytes);
}

absl::Span<std::byte> BlockArena::Block(int layer, BlockId block) const {
  TANDEM_CHECK(block.value() >= 0 && block.value() < num_blocks_, "block ", block.value(), " of ",
               num_blocks_);
  return absl::MakeSpan(LayerRegion(layer) + block.value() * layout_.layer_block_bytes,
                        static_cast<size_t>(layout_.layer_block_bytes));
}

std::byte* BlockArena::LayerRegion(int layer) const {
  TANDEM_CHECK(layer >= 0 && layer < layout_.num_layers, "layer ", layer, " of ",
               layout_.num_layers);
  return regions_[layer];
}

void BlockArena::MarkArrived(BlockId block) const {
  TANDEM_CHECK(block.value() >= 0 && block.value() < num_blocks_, "block ", block.value(), " of ",
               num_blocks_);
  arrived_[static_cast<size_t>(block.value())].store(true, std::memory_order_release);
}

bool BlockArena::TakeArrived(BlockId block) const {
  std::atomic<bool>& arrived = arrived_[static_cast<size_t>(block.value())];
  return arrived.load(std::memory_order_acquire) && arrived.exchange(false);
}

}  // namespace tandem::kv
