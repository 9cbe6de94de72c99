// The part of BlockPool (block_pool.h) that windowed layers need: which prefixes are complete, and
// the references to window slots.
#include <vector>

#include "common/base/check.h"
#include "common/kv/block_pool.h"

namespace tandem::kv {

int64_t BlockPool::MatchLength(absl::Span<const BlockHash> hashes) const {
  int64_t complete = 0;
  int64_t with_slots = 0;  // in a row, up to the block looked at
  for (int64_t i = 0; i < std::ssize(hashes); ++i) {
    const auto it = by_hash_.find(hashes[i]);
    if (it == by_hash_.end()) break;
    with_slots = HasSlot(*it) ? with_slots + 1 : 0;
    if (with_slots >= i + 1 - FirstWindowed(i + 1)) complete = i + 1;
  }
  return complete;
}

std::vector<BlockId> BlockPool::Match(absl::Span<const BlockHash> hashes, const BlockOwner& owner) {
  std::vector<BlockId> matched =
      MatchBlocks(hashes.subspan(0, static_cast<size_t>(MatchLength(hashes))), owner);
  if (!window_.has_value()) return matched;
  for (int64_t i = FirstWindowed(std::ssize(matched)); i < std::ssize(matched); ++i)
    window_->Ref(matched[i]);
  return matched;
}

std::optional<BlockId> BlockPool::PinWhole(const BlockHash& hash) {
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end() || !HasSlot(*it)) return std::nullopt;
  AddReference(*it);
  if (window_.has_value()) window_->Ref(*it);
  return *it;
}

void BlockPool::UnpinWhole(absl::Span<const BlockId> blocks) {
  UnrefSlots(blocks);
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) Unref(*block);
}

void BlockPool::UnpinMatched(absl::Span<const BlockId> blocks) {
  UnrefSlots(blocks.subspan(static_cast<size_t>(FirstWindowed(std::ssize(blocks)))));
  for (auto block = blocks.rbegin(); block != blocks.rend(); ++block) Unref(*block);
}

void BlockPool::AddSlots(absl::Span<const BlockId> blocks) {
  if (!window_.has_value()) return;
  for (const BlockId block : blocks) {
    const Block& b = At(block);
    TANDEM_CHECK(b.state == State::kUsed && !b.sealed, "block ", block.value(),
                 " gets a window slot while sealed or not used");
  }
  window_->Add(blocks);
}

void BlockPool::UnrefSlots(absl::Span<const BlockId> blocks) {
  if (!window_.has_value()) return;
  for (const BlockId block : blocks)
    window_->Unref(block, At(block).findable() || parts_.Contains(block));
}

bool BlockPool::GiveUpName(BlockId block) {
  Block& b = At(block);
  if (b.saving) return false;
  parts_.Remove(block);
  if (b.state == State::kCached) {
    LeaveCache(block);
    Free(block);
  } else {
    b.sealed = false;  // as one that finds its hash taken
  }
  return true;
}

}  // namespace tandem::kv
