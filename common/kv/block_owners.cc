#include "common/kv/block_owners.h"

#include <algorithm>

namespace tandem::kv {

void BlockOwners::OnUsedBy(BlockId block, const BlockOwner& owner) {
  if (!owner.any()) return;
  const auto at = static_cast<size_t>(block.value());
  if (at >= blocks_.size()) blocks_.resize(at + 1);
  Block& b = blocks_[at];
  if (b.owner == nullptr) {
    b.owner = &*entries_.try_emplace(owner.tenant).first;
    ++b.owner->second.used;
  }
  if (b.owner->first == owner.tenant) b.owner->second.share = owner.share;
}

void BlockOwners::OnCached(BlockId block) {
  Block* const b = Owned(block);
  if (b == nullptr) return;
  Entry& entry = b->owner->second;
  --entry.used;
  b->cached = entry.cached.insert(entry.cached.end(), block);
}

void BlockOwners::OnTakenFromCache(BlockId block) {
  Block* const b = Owned(block);
  if (b == nullptr) return;
  b->owner->second.cached.erase(b->cached);
  ++b->owner->second.used;
}

void BlockOwners::OnFreed(BlockId block) {
  Block* const b = Owned(block);
  if (b == nullptr) return;
  Entry& entry = b->owner->second;
  if (--entry.used == 0 && entry.cached.empty()) entries_.erase(std::string(b->owner->first));
  b->owner = nullptr;
}

std::optional<BlockId> BlockOwners::ToEvict(const Entry& entry, int64_t more,
                                            absl::FunctionRef<bool(BlockId)> evictable) const {
  const auto most = static_cast<int64_t>(entry.share * static_cast<double>(num_blocks_));
  if (entry.used + std::ssize(entry.cached) + more <= most) return std::nullopt;
  const auto first = std::find_if(entry.cached.begin(), entry.cached.end(), evictable);
  return first == entry.cached.end() ? std::nullopt : std::optional(*first);
}

std::optional<BlockId> BlockOwners::ToEvict(const BlockOwner& owner, int64_t more,
                                            absl::FunctionRef<bool(BlockId)> evictable) const {
  const auto entry = entries_.find(owner.tenant);
  if (!owner.any() || entry == entries_.end()) return std::nullopt;
  return ToEvict(entry->second, more, evictable);
}

std::optional<BlockId> BlockOwners::ToEvictFor(BlockId block,
                                               absl::FunctionRef<bool(BlockId)> evictable) const {
  const Block* const b = Owned(block);
  return b == nullptr ? std::nullopt : ToEvict(b->owner->second, 0, evictable);
}

std::vector<BlockOwners::Counts> BlockOwners::counts() const {
  std::vector<Counts> counts;
  for (const auto& [tenant, entry] : entries_)
    counts.push_back({tenant, entry.used, std::ssize(entry.cached)});
  return counts;
}

}  // namespace tandem::kv
