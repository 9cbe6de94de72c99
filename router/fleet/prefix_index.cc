#include "router/fleet/prefix_index.h"

#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "absl/numeric/bits.h"
#include "common/base/check.h"
#include "common/base/mutation.h"

namespace tandem::router {
namespace {

using Next = HolderTable::Next;

// Names that a batch asks the memory for ahead of the one it works on.
constexpr size_t kPrefetchAhead = 8;

// Lengths of which a search finds no new holder; after them it halves the length each time.
constexpr int kInVainMax = 4;

uint64_t BitOf(NodeSlot slot) { return uint64_t{1} << (slot % 64); }

// Calls holds(n) for lengths n and returns the greatest for which it is true, if what holds for a
// length holds for all shorter ones: doubles the length until it is too long, then halves the rest.
template <typename Holds>
int32_t LongestRun(int32_t length_max, Holds holds) {
  int32_t good = 0, bad = length_max + 1;
  for (int32_t length = 1; length <= length_max; length = std::min(2 * length, length_max)) {
    if (!holds(length)) {
      bad = length;
      break;
    }
    good = length;
    if (length == length_max) return length_max;
  }
  while (good + 1 < bad) {
    const int32_t middle = good + (bad - good) / 2;
    (holds(middle) ? good : bad) = middle;
  }
  return good;
}

}  // namespace

// One prompt's search for its holders.
class PrefixIndex::Search {
 public:
  Search(const PrefixIndex& index, absl::Span<const kv::BlockHash> hashes)
      : index_(index), hashes_(hashes) {}

  // Nodes of the group that hold the run of `blocks` blocks, counted up to `count_max`.
  uint32_t Count(NodeGroup group, int32_t blocks, uint32_t count_max) const;
  std::vector<Match> Deepest(NodeGroup group, uint32_t count, NodeSlot from) const;

 private:
  // Adds the group's holders of a run to `matches`, those that are in it left out, until it has
  // `count`; those from slot `from` on first.
  void Collect(NodeGroup group, int32_t blocks, uint32_t count, NodeSlot from,
               std::vector<Match>& matches) const;
  bool InGroup(NodeGroup group, NodeSlot slot) const {
    return (index_.in_group_[group][slot / 64] & BitOf(slot)) != 0;
  }
  // Calls visit(slot) for holders of the block until it returns false.
  template <typename Visit>
  void ForEach(NodeGroup group, int32_t blocks, NodeSlot from, Visit visit) const;

  const PrefixIndex& index_;
  const absl::Span<const kv::BlockHash> hashes_;
};

template <typename Visit>
void PrefixIndex::Search::ForEach(NodeGroup group, int32_t blocks, NodeSlot from,
                                  Visit visit) const {
  absl::InlinedVector<NodeSlot, kNarrowMax> singles;
  std::optional<uint32_t> row;
  index_.table_.Look(index_.TagOf(hashes_[blocks - 1]), [&](const HolderEntry& entry) {
    if (entry.wide) row = entry.generation;
    if (!entry.wide && index_.Live(entry) && InGroup(group, entry.slot))
      singles.push_back(entry.slot);
    return !entry.wide;
  });
  if (!row.has_value()) {
    // As if slots were counted from `from` on.
    std::sort(singles.begin(), singles.end(), [from](NodeSlot a, NodeSlot b) {
      return static_cast<NodeSlot>(a - from) < static_cast<NodeSlot>(b - from);
    });
    for (const NodeSlot slot : singles)
      if (!visit(slot)) return;
    return;
  }
  const SlotSet& members = index_.in_group_[group];
  const size_t words = members.size();
  // The word of `from` comes twice: its upper part first, its lower part last.
  const uint64_t upper = ~uint64_t{0} << (from % 64);
  for (size_t i = 0; i <= words; ++i) {
    const size_t word = (from / 64 + i) % words;
    uint64_t left = index_.wide_.Holding(*row, word) & members[word];
    if (i == 0) left &= upper;
    if (i == words) left &= ~upper;
    for (; left != 0; left &= left - 1)
      if (!visit(static_cast<NodeSlot>(64 * word + absl::countr_zero(left)))) return;
  }
}

uint32_t PrefixIndex::Search::Count(NodeGroup group, int32_t blocks, uint32_t count_max) const {
  const SlotSet& members = index_.in_group_[group];
  uint32_t count = 0;
  index_.table_.Look(index_.TagOf(hashes_[blocks - 1]), [&](const HolderEntry& entry) {
    if (!entry.wide) {
      if (InGroup(group, entry.slot) && index_.Live(entry)) ++count;
      return count < count_max;
    }
    for (size_t word = 0; word < members.size() && count < count_max; ++word)
      count += absl::popcount(index_.wide_.Holding(entry.generation, word) & members[word]);
    return false;
  });
  return count;
}

void PrefixIndex::Search::Collect(NodeGroup group, int32_t blocks, uint32_t count, NodeSlot from,
                                  std::vector<Match>& matches) const {
  const size_t longer = matches.size();
  const uint64_t first_tag = index_.TagOf(hashes_[0]);
  ForEach(group, blocks, from, [&](NodeSlot slot) {
    const auto end = matches.begin() + static_cast<std::ptrdiff_t>(longer);
    const bool has =
        std::any_of(matches.begin(), end, [&](const Match& m) { return m.slot == slot; });
    if (!has && index_.TierOfTag(slot, first_tag) != 0) matches.push_back({slot, blocks});
    return matches.size() < count;
  });
}

std::vector<PrefixIndex::Match> PrefixIndex::Search::Deepest(NodeGroup group, uint32_t count,
                                                             NodeSlot from) const {
  std::vector<Match> matches;
  auto length_max = static_cast<int32_t>(hashes_.size());
  int in_vain = 0;
  // The longest run that one more node holds than were found so far, until there are enough.
  while (matches.size() < count && length_max > 0) {
    const size_t found = matches.size();
    const auto wanted = static_cast<uint32_t>(found) + 1;
    ++index_.lengths_searched_;
    const int32_t blocks = LongestRun(
        length_max, [&](int32_t length) { return Count(group, length, wanted) >= wanted; });
    if (blocks == 0) break;
    Collect(group, blocks, count, from, matches);
    length_max = blocks - 1;
    // A holder without the prompt's first block is found again at each shorter length.
    if (matches.size() == found && ++in_vain > kInVainMax) length_max = blocks / 2;
    // Lengths may have been left out.
    if (in_vain > kInVainMax)
      for (size_t i = found; i < matches.size(); ++i)
        matches[i].blocks = std::max(matches[i].blocks, index_.RunOn(matches[i].slot, hashes_));
  }
  if (in_vain > kInVainMax)
    std::stable_sort(matches.begin(), matches.end(),
                     [](const Match& a, const Match& b) { return a.blocks > b.blocks; });
  return matches;
}

PrefixIndex::PrefixIndex(const Options& options)
    : options_(options), wide_(options.slots_max, kWideMin), nodes_(options.slots_max) {
  for (SlotSet& group : in_group_) group.resize(wide_.words());
}

void PrefixIndex::AddNode(NodeSlot slot, NodeGroup group, int64_t entries_max) {
  TANDEM_CHECK(slot < nodes_.size() && !nodes_[slot].joined, "slot ", slot);
  nodes_[slot].joined = true;
  nodes_[slot].entries_max = entries_max;
  SetGroup(slot, group);
}

void PrefixIndex::SetGroup(NodeSlot slot, NodeGroup group) {
  NodeState& node = nodes_.at(slot);
  if (node.group != kNoGroup) in_group_[node.group][slot / 64] &= ~BitOf(slot);
  node.group = group;
  if (group != kNoGroup) in_group_[group][slot / 64] |= BitOf(slot);
}

void PrefixIndex::DropNode(NodeSlot slot) {
  if (slot >= nodes_.size() || !nodes_[slot].joined) return;
  SetGroup(slot, kNoGroup);
  NodeState& node = nodes_[slot];
  wide_.ClearAll(slot);
  entries_ -= node.live;
  node = {.generation = node.generation + 1};
}

uint64_t PrefixIndex::TagOf(const kv::BlockHash& hash) const {
  // Names are uniform. The seed keeps a hostile node from choosing names of one segment.
  uint64_t tag = (hash.high ^ options_.seed) * 0x9e3779b97f4a7c15;
  tag = (tag ^ (tag >> 32) ^ hash.low) * 0xbf58476d1ce4e5b9;
  tag ^= tag >> 29;
  return options_.tag_bits == 64 ? tag : tag << (64 - options_.tag_bits);
}

bool PrefixIndex::Live(const HolderEntry& entry) const {
  return entry.wide ? wide_.count(entry.generation) > 0
                    : nodes_[entry.slot].generation == entry.generation;
}

// ---- events

void PrefixIndex::Store(NodeSlot slot, absl::Span<const kv::BlockHash> hashes, Tier tier) {
  NodeState& node = nodes_.at(slot);
  TANDEM_CHECK(node.joined, "slot ", slot);
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (i + kPrefetchAhead < hashes.size()) table_.Prefetch(TagOf(hashes[i + kPrefetchAhead]));
    const uint64_t tag = TagOf(hashes[i]);
    if (!StoreOne(slot, tag, tier)) continue;
    ++node.live;
    ++entries_;
  }
}

void PrefixIndex::Remove(NodeSlot slot, absl::Span<const kv::BlockHash> hashes) {
  NodeState& node = nodes_.at(slot);
  TANDEM_CHECK(node.joined, "slot ", slot);
  for (size_t i = 0; i < hashes.size(); ++i) {
    if (i + kPrefetchAhead < hashes.size()) table_.Prefetch(TagOf(hashes[i + kPrefetchAhead]));
    if (!RemoveOne(slot, TagOf(hashes[i]))) continue;
    --node.live;
    --entries_;
  }
}

bool PrefixIndex::StoreOne(NodeSlot slot, uint64_t tag, Tier tier) {
  if (taken() >= options_.entries_max && !TANDEM_MUTATED(kIndexUnbounded)) MakeRoom();
  const auto tier_bits = static_cast<uint8_t>(tier);
  bool here = false;
  std::optional<uint32_t> row;
  uint32_t holders = 0;
  table_.Walk(tag, [&](HolderEntry& entry) {
    if (IsDead(entry)) return Next::kErase;
    if (entry.wide) {
      row = entry.generation;
      here = wide_.TierOf(*row, slot) != 0;
      return Next::kStop;
    }
    ++holders;
    if (entry.slot != slot) return Next::kGoOn;
    here = true;
    entry.tier = tier_bits;
    return Next::kStop;
  });
  if (!here && nodes_[slot].live >= nodes_[slot].entries_max) {
    ++evicted_;
    return false;
  }
  if (!row.has_value()) {
    if (here) return false;
    HolderEntry entry;
    entry.tag = tag;
    entry.slot = slot;
    entry.generation = nodes_[slot].generation;
    entry.tier = tier_bits;
    if (holders < kNarrowMax) return AddEntry(entry);
    row = Widen(tag);
    if (!row.has_value()) return false;
  }
  const bool added = wide_.Set(*row, slot, tier);
  // Most of its nodes have left since.
  if (wide_.count(*row) < kWideMin) Narrow(tag, *row);
  return added;
}

bool PrefixIndex::RemoveOne(NodeSlot slot, uint64_t tag) {
  bool removed = false;
  std::optional<uint32_t> row;
  table_.Walk(tag, [&](HolderEntry& entry) {
    if (IsDead(entry)) return Next::kErase;
    if (entry.wide) {
      row = entry.generation;
      return Next::kStop;
    }
    if (entry.slot != slot) return Next::kGoOn;
    removed = true;
    return Next::kEraseAndStop;
  });
  if (row.has_value() && wide_.Clear(*row, slot)) {
    removed = true;
    if (wide_.count(*row) < kWideMin) Narrow(tag, *row);
  }
  return removed;
}

void PrefixIndex::Touch(NodeSlot slot, absl::Span<const kv::BlockHash> hashes) {
  if (2 * taken() < options_.entries_max) return;  // nothing will be forgotten soon
  for (const kv::BlockHash& hash : hashes) {
    table_.Walk(TagOf(hash), [&](HolderEntry& entry) {
      if (!Live(entry) || (!entry.wide && entry.slot != slot)) return Next::kGoOn;
      entry.used = true;
      return Next::kStop;
    });
  }
}

// ---- the table

bool PrefixIndex::AddEntry(const HolderEntry& entry) {
  if (table_.Add(entry, [this](const HolderEntry& old) { return IsDead(old); })) return true;
  ++evicted_;
  return false;
}

bool PrefixIndex::IsDead(const HolderEntry& entry) {
  if (Live(entry)) return false;
  if (entry.wide) wide_.Free(entry.generation);
  return true;
}

std::optional<uint32_t> PrefixIndex::Widen(uint64_t tag) {
  HolderEntry entry;
  entry.tag = tag;
  entry.wide = true;
  entry.tier = static_cast<uint8_t>(Tier::kDevice);
  entry.generation = wide_.Add();
  table_.Walk(tag, [&](HolderEntry& single) {
    wide_.Set(entry.generation, single.slot, static_cast<Tier>(single.tier));
    return Next::kErase;
  });
  if (AddEntry(entry)) return entry.generation;
  ForgetRow(entry.generation);
  return std::nullopt;
}

void PrefixIndex::Narrow(uint64_t tag, uint32_t row) {
  table_.Walk(tag, [](HolderEntry&) { return Next::kErase; });
  for (size_t word = 0; word < wide_.words(); ++word) {
    for (uint64_t left = wide_.Holding(row, word); left != 0; left &= left - 1) {
      HolderEntry entry;
      entry.tag = tag;
      entry.slot = static_cast<NodeSlot>(64 * word + absl::countr_zero(left));
      entry.generation = nodes_[entry.slot].generation;
      entry.tier = wide_.TierOf(row, entry.slot);
      if (AddEntry(entry)) continue;
      --nodes_[entry.slot].live;
      --entries_;
    }
  }
  wide_.Free(row);
}

void PrefixIndex::MakeRoom() {
  // Entries that the hand spares in one go; the next is forgotten though placement used it.
  constexpr int kSparedMax = 64;
  int spared = 0;
  while (taken() >= options_.entries_max) {
    table_.Tick([&](HolderEntry& entry) {
      if (IsDead(entry)) return true;
      if (entry.used && spared < kSparedMax) {
        entry.used = false;
        ++spared;
        return false;
      }
      Forget(entry);
      return true;
    });
  }
}

void PrefixIndex::Forget(const HolderEntry& entry) {
  if (entry.wide) return ForgetRow(entry.generation);
  --nodes_[entry.slot].live;
  --entries_;
  ++evicted_;
}

void PrefixIndex::ForgetRow(uint32_t row) {
  for (size_t word = 0; word < wide_.words(); ++word)
    for (uint64_t left = wide_.Holding(row, word); left != 0; left &= left - 1)
      --nodes_[64 * word + absl::countr_zero(left)].live;
  const int64_t count = wide_.count(row);
  entries_ -= count;
  evicted_ += count;
  wide_.Free(row);
}

// ---- questions

uint8_t PrefixIndex::TierOfTag(NodeSlot slot, uint64_t tag) const {
  uint8_t tier = 0;
  table_.Look(tag, [&](const HolderEntry& entry) {
    if (entry.wide) {
      tier = wide_.TierOf(entry.generation, slot);
      return false;
    }
    if (entry.slot != slot || !Live(entry)) return true;
    tier = entry.tier;
    return false;
  });
  return tier;
}

std::optional<Tier> PrefixIndex::TierOn(NodeSlot slot, const kv::BlockHash& hash) const {
  const uint8_t tier = TierOfTag(slot, TagOf(hash));
  return tier == 0 ? std::nullopt : std::optional<Tier>(static_cast<Tier>(tier));
}

bool PrefixIndex::HeldBy(NodeGroup group, const kv::BlockHash& hash) const {
  return Search(*this, {&hash, 1}).Count(group, 1, 1) > 0;
}

int32_t PrefixIndex::RunOn(NodeSlot slot, absl::Span<const kv::BlockHash> hashes) const {
  return LongestRun(static_cast<int32_t>(hashes.size()), [&](int32_t blocks) {
    return TierOfTag(slot, TagOf(hashes[blocks - 1])) != 0;
  });
}

PrefixIndex::Matches PrefixIndex::DeepestHolders(absl::Span<const kv::BlockHash> hashes,
                                                 size_t count, NodeSlot from) const {
  Search search(*this, hashes);
  Matches matches;
  for (const NodeGroup group : {kPrefillNodes, kDecodeNodes})
    matches[group] = search.Deepest(group, static_cast<uint32_t>(count), from);
  return matches;
}

}  // namespace tandem::router
