#include "router/fleet/prefix_index.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "common/base/check.h"

namespace tandem::router {

void PrefixIndex::AddNode(NodeSlot slot, int64_t entries_max) {
  NodeEntries node;
  node.entries_max = entries_max;
  node.last_used = ++uses_;
  TANDEM_CHECK(nodes_.emplace(slot, std::move(node)).second, "slot ", slot);
}

void PrefixIndex::DropNode(NodeSlot slot) {
  const auto it = nodes_.find(slot);
  if (it == nodes_.end()) return;
  for (const kv::BlockHash& hash : it->second.log) Erase(slot, hash);
  nodes_.erase(it);
}

void PrefixIndex::Store(NodeSlot slot, absl::Span<const kv::BlockHash> hashes) {
  const auto it = nodes_.find(slot);
  TANDEM_CHECK(it != nodes_.end(), "slot ", slot);
  NodeEntries& node = it->second;
  for (const kv::BlockHash& hash : hashes) {
    if (!Insert(slot, hash)) continue;
    node.log.push_back(hash);
    ++node.live;
    if (node.live > node.entries_max) EvictOldest(slot, node);
    if (entries_ > entries_max_) MakeRoom();
  }
  Compact(slot, node);
}

void PrefixIndex::Remove(NodeSlot slot, absl::Span<const kv::BlockHash> hashes) {
  const auto it = nodes_.find(slot);
  TANDEM_CHECK(it != nodes_.end(), "slot ", slot);
  for (const kv::BlockHash& hash : hashes)
    if (Erase(slot, hash)) --it->second.live;
  // Nodes mostly remove their oldest blocks first.
  std::deque<kv::BlockHash>& log = it->second.log;
  while (!log.empty() && !Holds(slot, log.front())) log.pop_front();
  Compact(slot, it->second);
}

void PrefixIndex::Touch(NodeSlot slot) {
  if (const auto it = nodes_.find(slot); it != nodes_.end()) it->second.last_used = ++uses_;
}

std::vector<PrefixIndex::Match> PrefixIndex::LongestPrefixes(
    absl::Span<const kv::BlockHash> hashes) const {
  std::vector<Match> matches;
  if (hashes.empty()) return matches;
  // `alive` holds every block so far: indices into `matches`, which stay ascending by slot.
  std::vector<size_t> alive;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const auto it = holders_.find(hashes[i]);
    if (it == holders_.end()) break;
    const Holders& holders = it->second;
    if (i == 0) {
      for (const NodeSlot slot : holders) {
        alive.push_back(matches.size());
        matches.push_back({slot, 1});
      }
      continue;
    }
    size_t kept = 0;
    auto holder = holders.begin();
    for (const size_t index : alive) {
      while (holder != holders.end() && *holder < matches[index].slot) ++holder;
      if (holder == holders.end()) break;
      if (*holder != matches[index].slot) continue;
      ++matches[index].blocks;
      alive[kept++] = index;
    }
    alive.resize(kept);
    if (alive.empty()) break;
  }
  return matches;
}

bool PrefixIndex::Insert(NodeSlot slot, const kv::BlockHash& hash) {
  Holders& holders = holders_[hash];
  if (holders.empty() || holders.back() < slot) {
    holders.push_back(slot);
    ++entries_;
    return true;
  }
  const auto place = std::lower_bound(holders.begin(), holders.end(), slot);
  if (place != holders.end() && *place == slot) return false;
  holders.insert(place, slot);
  ++entries_;
  return true;
}

bool PrefixIndex::Erase(NodeSlot slot, const kv::BlockHash& hash) {
  const auto it = holders_.find(hash);
  if (it == holders_.end()) return false;
  const auto place = std::lower_bound(it->second.begin(), it->second.end(), slot);
  if (place == it->second.end() || *place != slot) return false;
  it->second.erase(place);
  if (it->second.empty()) holders_.erase(it);
  --entries_;
  return true;
}

bool PrefixIndex::Holds(NodeSlot slot, const kv::BlockHash& hash) const {
  const auto it = holders_.find(hash);
  return it != holders_.end() && std::binary_search(it->second.begin(), it->second.end(), slot);
}

void PrefixIndex::EvictOldest(NodeSlot slot, NodeEntries& node) {
  while (!node.log.empty()) {
    const kv::BlockHash hash = node.log.front();
    node.log.pop_front();
    if (!Erase(slot, hash)) continue;  // removed before; or named again later in the log
    --node.live;
    ++evicted_;
    return;
  }
}

void PrefixIndex::MakeRoom() {
  auto oldest = nodes_.end();
  for (auto it = nodes_.begin(); it != nodes_.end(); ++it)
    if (it->second.live > 0 &&
        (oldest == nodes_.end() || it->second.last_used < oldest->second.last_used))
      oldest = it;
  if (oldest != nodes_.end()) EvictOldest(oldest->first, oldest->second);
}

void PrefixIndex::Compact(NodeSlot slot, NodeEntries& node) {
  constexpr int64_t kStaleAllowed = 64;  // small logs are not worth a pass
  if (static_cast<int64_t>(node.log.size()) <= 2 * node.live + kStaleAllowed) return;
  // A hash that was removed and stored again is in the log twice. Its last place counts.
  absl::flat_hash_set<kv::BlockHash> seen;
  std::deque<kv::BlockHash> log;
  for (auto it = node.log.rbegin(); it != node.log.rend(); ++it)
    if (Holds(slot, *it) && seen.insert(*it).second) log.push_front(*it);
  node.log = std::move(log);
}

}  // namespace tandem::router
