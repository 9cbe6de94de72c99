#include "common/storage/use_order.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace tandem::storage {
namespace {

constexpr kv::BlockHash kNone;

}  // namespace

void UseOrder::Add(const kv::BlockHash& hash, const kv::BlockHash& parent) {
  const auto [it, is_new] = blocks_.try_emplace(hash, Block{.parent = parent, .used = next_use_++});
  TANDEM_CHECK(is_new, "a block is stored twice");
  if (IsLeaf(hash)) leaves_.emplace(it->second.used, hash);
  if (parent == kNone || ++children_[parent] > 1) return;
  if (const auto found = blocks_.find(parent); found != blocks_.end())
    leaves_.erase(found->second.used);
}

void UseOrder::Use(const kv::BlockHash& hash) {
  const auto it = blocks_.find(hash);
  if (it == blocks_.end()) return;
  const uint64_t before = std::exchange(it->second.used, next_use_++);
  if (leaves_.erase(before) > 0) leaves_.emplace(it->second.used, hash);
}

void UseOrder::Remove(const kv::BlockHash& hash) {
  const auto it = blocks_.find(hash);
  TANDEM_CHECK(it != blocks_.end(), "a block is removed that is not stored");
  const Block block = it->second;
  blocks_.erase(it);
  leaves_.erase(block.used);
  if (block.parent == kNone) return;
  const auto parent = blocks_.find(block.parent);
  if (parent != blocks_.end()) parent->second.used = std::max(parent->second.used, block.used);
  const auto siblings = children_.find(block.parent);
  if (--siblings->second > 0) return;
  children_.erase(siblings);
  if (parent != blocks_.end()) leaves_.emplace(parent->second.used, block.parent);
}

std::optional<kv::BlockHash> UseOrder::ToRemoveFor(const kv::BlockHash& parent) const {
  for (const auto& [used, hash] : leaves_)  // the second one at the latest
    if (parent == kNone || hash != parent) return hash;
  return std::nullopt;
}

kv::BlockHash UseOrder::ParentOf(const kv::BlockHash& hash) const {
  const auto it = blocks_.find(hash);
  return it == blocks_.end() ? kNone : it->second.parent;
}

std::vector<kv::BlockHash> UseOrder::Hashes() const {
  std::vector<std::pair<uint64_t, kv::BlockHash>> by_use;
  for (const auto& [hash, block] : blocks_) by_use.emplace_back(block.used, hash);
  std::sort(by_use.begin(), by_use.end());
  std::vector<kv::BlockHash> hashes;
  for (const auto& [used, hash] : by_use) hashes.push_back(hash);
  return hashes;
}

}  // namespace tandem::storage
