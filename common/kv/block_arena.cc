#include "common/kv/block_arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/telemetry/log.h"
#include "common/telemetry/start_log.h"

namespace tandem::kv {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kHugePageBytes = size_t{2} << 20;
constexpr char kSharedHugePages[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";

// The choice is in brackets: "always within_size advise [never] deny force".
bool SharedMemoryMayBeHuge() {
  std::ifstream file(kSharedHugePages);
  const std::string choices((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
  return !choices.empty() && !absl::StrContains(choices, "[never]") &&
         !absl::StrContains(choices, "[deny]");
}

}  // namespace

BlockArena::BlockArena(const BlockLayout& layout, int64_t num_blocks, int64_t window_slots)
    : layout_(layout),
      num_blocks_(num_blocks),
      arrived_(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(num_blocks))) {
  if (window_slots == 0) return;
  slots_ = std::make_shared<SlotTable>(num_blocks, window_slots);
  for (int32_t layer = 0; layer < layout.num_layers; ++layer)
    by_slot_.push_back(layout.IsWindowed(layer));
}

absl::StatusOr<std::unique_ptr<BlockArena>> BlockArena::Create(const BlockLayout& layout,
                                                               int64_t num_blocks,
                                                               ArenaMemory memory,
                                                               int64_t window_slots) {
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
  if (window_slots < 0 || window_slots > (layout.windowed() ? num_blocks : 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV arena: window_slots is ", window_slots, ", expected 0",
        layout.windowed() ? absl::StrCat(" to ", num_blocks) : " for layers without windows"));
  }
  std::unique_ptr<BlockArena> arena(new BlockArena(layout, num_blocks, window_slots));
  RETURN_IF_ERROR(arena->Map(memory));
  return arena;
}

absl::Status BlockArena::Map(ArenaMemory memory) {
  const size_t used_bytes = static_cast<size_t>(num_blocks_ * layout_.layer_block_bytes);
  // Regions of some size begin where a huge page may begin.
  const size_t align = used_bytes >= kHugePageBytes ? kHugePageBytes : kPageBytes;
  if (used_bytes > std::numeric_limits<size_t>::max() / 2 / layout_.num_layers) {
    return absl::InvalidArgumentError("KV arena: its layers exceed the address space");
  }
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    const bool by_slot = slots_ != nullptr && layout_.IsWindowed(layer);
    const auto blocks = static_cast<size_t>(by_slot ? slots_->num_slots() : num_blocks_);
    const size_t bytes = blocks * static_cast<size_t>(layout_.layer_block_bytes);
    regions_.push_back(num_bytes_);
    num_bytes_ += (bytes + align - 1) / align * align;
  }
  const bool small_pages = memory == ArenaMemory::kShareableIfHuge && !SharedMemoryMayBeHuge();
  if (small_pages) {
    LogStart(
        "KV arena is not shared with processes of this host",
        {{"reason", absl::StrCat("huge pages for shared memory are off in ", kSharedHugePages)}});
  } else if (memory == ArenaMemory::kShareable || memory == ArenaMemory::kShareableIfHuge) {
    const absl::Status mapped = MapShareable();
    if (mapped.ok()) return mapped;
    Log(LogLevel::kWarning, "KV arena cannot be shared with processes of this host",
        {{"reason", mapped.message()}});
  }
  const int reserve = memory == ArenaMemory::kUnreserved ? MAP_NORESERVE : 0;
  void* base = ::mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | reserve, -1, 0);
  if (base == MAP_FAILED) {
    return absl::ResourceExhaustedError(absl::StrCat("KV arena: cannot map ", num_bytes_,
                                                     " bytes for ", layout_.num_layers,
                                                     " layers: ", std::strerror(errno)));
  }
  // This is only advice: huge pages cause fewer TLB misses, where the system grants them.
  ::madvise(base, num_bytes_, MADV_HUGEPAGE);
  base_ = static_cast<std::byte*>(base);
  return absl::OkStatus();
}

absl::Status BlockArena::MapShareable() {
  const auto error = [&](absl::string_view call) {
    if (descriptor_ >= 0) ::close(descriptor_);
    descriptor_ = -1;
    return absl::ResourceExhaustedError(absl::StrCat(call, ": ", std::strerror(errno)));
  };
  descriptor_ = ::memfd_create("tandem-kv", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (descriptor_ < 0) return error("memfd_create");
  if (::ftruncate(descriptor_, static_cast<off_t>(num_bytes_)) != 0) return error("ftruncate");
  void* base = ::mmap(nullptr, num_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (base == MAP_FAILED) return error("mmap");
  // From here on the mapping above is the only one that can write.
  if (::fcntl(descriptor_, F_ADD_SEALS,
              F_SEAL_FUTURE_WRITE | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    const absl::Status status = error("sealing the memfd");
    ::munmap(base, num_bytes_);
    return status;
  }
  ::madvise(base, num_bytes_, MADV_HUGEPAGE);
  base_ = static_cast<std::byte*>(base);
  return absl::OkStatus();
}

BlockArena::~BlockArena() {
  if (base_ != nullptr) ::munmap(base_, num_bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::Span<std::byte> BlockArena::Block(int layer, BlockId block) const {
  TANDEM_CHECK(block.value() >= 0 && block.value() < num_blocks_, "block ", block.value(), " of ",
               num_blocks_);
  const int32_t place = Place(layer, block);
  TANDEM_CHECK(place >= 0, "block ", block.value(), " has no window slot, and layer ", layer,
               " a window");
  return absl::MakeSpan(LayerRegion(layer) + place * layout_.layer_block_bytes,
                        static_cast<size_t>(layout_.layer_block_bytes));
}

void BlockArena::CopyBlock(int layer, BlockId from, BlockId to) const {
  TANDEM_CHECK(from != to, "block ", from.value(), " copied to itself");
  std::memcpy(Block(layer, to).data(), Block(layer, from).data(),
              static_cast<size_t>(layout_.layer_block_bytes));
}

std::byte* BlockArena::LayerRegion(int layer) const {
  TANDEM_CHECK(layer >= 0 && layer < layout_.num_layers, "layer ", layer, " of ",
               layout_.num_layers);
  return base_ + regions_[static_cast<size_t>(layer)];
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
