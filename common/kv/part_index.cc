#include "common/kv/part_index.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/mutation.h"

namespace tandem::kv {

bool PartIndex::Add(BlockId block, const BlockHash& parent, absl::Span<const TokenId> tokens) {
  TANDEM_CHECK(!tokens.empty() && !Contains(block), "block ", block.value(), " with a part of ",
               tokens.size(), " tokens");
  const std::optional<Found> known = Find(parent, tokens);
  if (known.has_value() && known->rows == std::ssize(tokens)) return false;
  std::vector<Part>& parts = by_parent_[parent];
  if (parts.size() >= kPartsOfParentMax) return false;
  parts.push_back({.block = block, .tokens = {tokens.begin(), tokens.end()}});
  parent_of_.emplace(block, parent);
  return true;
}

std::optional<PartIndex::Found> PartIndex::Find(const BlockHash& parent,
                                                absl::Span<const TokenId> tokens) const {
  const auto parts = by_parent_.find(parent);
  if (parts == by_parent_.end()) return std::nullopt;
  std::optional<Found> longest;
  for (const Part& part : parts->second) {
    const size_t most = std::min(part.tokens.size(), tokens.size());
    const auto end = tokens.begin() + static_cast<ptrdiff_t>(most);
    int64_t rows = std::mismatch(tokens.begin(), end, part.tokens.begin()).first - tokens.begin();
    if (TANDEM_MUTATED(kPartTokensIgnored)) rows = static_cast<int64_t>(most);
    if (rows > (longest.has_value() ? longest->rows : 0))
      longest = {.block = part.block, .rows = rows};
  }
  return longest;
}

void PartIndex::Remove(BlockId block) {
  const auto found = parent_of_.find(block);
  if (found == parent_of_.end()) return;
  const auto parent = by_parent_.find(found->second);
  std::vector<Part>& parts = parent->second;
  parts.erase(std::find_if(parts.begin(), parts.end(),
                           [&](const Part& part) { return part.block == block; }));
  if (parts.empty()) by_parent_.erase(parent);
  parent_of_.erase(found);
}

std::vector<BlockId> PartIndex::PartsOf(const BlockHash& parent) const {
  std::vector<BlockId> blocks;
  const auto found = by_parent_.find(parent);
  if (found == by_parent_.end()) return blocks;
  for (const Part& part : found->second) blocks.push_back(part.block);
  return blocks;
}

}  // namespace tandem::kv
