#include "common/kv/eviction_order.h"

namespace tandem::kv {

std::optional<BlockId> EvictionOrder::First(absl::FunctionRef<bool(BlockId)> evictable) const {
  const Entry* first = nullptr;
  for (const std::list<Entry>& list : lists_) {
    for (const Entry& entry : list) {
      if (first != nullptr && first->rank < entry.rank) break;
      if (!evictable(entry.block)) continue;
      first = &entry;
      break;
    }
  }
  return first == nullptr ? std::nullopt : std::optional(first->block);
}

std::vector<BlockId> EvictionOrder::LastToFirst() const {
  std::vector<Entry> entries;
  entries.reserve(static_cast<size_t>(size_));
  for (const std::list<Entry>& list : lists_)
    entries.insert(entries.end(), list.begin(), list.end());
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.level < b.level;
  });
  std::vector<BlockId> blocks;
  blocks.reserve(entries.size());
  for (const Entry& entry : entries) blocks.push_back(entry.block);
  return blocks;
}

}  // namespace tandem::kv
