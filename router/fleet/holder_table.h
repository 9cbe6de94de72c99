// The hash table under the prefix index: 16 bytes for each (block, node) pair. It is extendible
// hashing: a directory, indexed by a tag's first bits, of segments of 64 KiB, each open-addressed
// with linear probing. A segment that is nearly full is split alone, so growth never stops the
// router for longer than one segment takes (some 50 µs), and the table has no second copy.
//
//   directory      segments
//   00 ──────────▶ [tag slot generation | tag slot generation |   | ... ]   depth 2
//   01 ──────────▶ [ ... ]                                                  depth 2
//   10 ──┬───────▶ [ ... ]                                                  depth 1
//   11 ──┘
//
// An entry of a node that has left is stale: its generation is not its slot's any more. Walks that
// change the table erase stale entries as they meet them.
//
// Thread safety: none; PrefixIndex owns it.
// Invariants: the entries of one tag lie in one segment, in one run without a gap; the order of
// entries depends on the calls alone, never on addresses.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "router/fleet/node_slot.h"

namespace tandem::router {

// Where a node keeps a block. A lower value is nearer to the computation.
enum class Tier : uint8_t { kDevice = 1, kHost = 2, kDisk = 3 };

// One holder of the block with this tag, or, if `wide`, the row that lists all its holders.
struct HolderEntry {
  uint64_t tag = 0;
  uint32_t generation = 0;  // of the slot; of a wide entry the row's number
  NodeSlot slot = 0;
  uint8_t tier = 0;  // a Tier; 0 = the place is empty
  bool wide : 1 = false;
  bool used : 1 = false;  // the clock bit: placement used it since the clock's hand came by

  bool empty() const { return tier == 0; }
};
static_assert(sizeof(HolderEntry) == 16);

class HolderTable {
 public:
  static constexpr size_t kSegmentEntries = 4096;
  // The directory's bound: 2^20 segments, 64 GiB. Beyond it an insertion fails.
  static constexpr int kDepthMax = 20;

  HolderTable();
  HolderTable(const HolderTable&) = delete;
  HolderTable& operator=(const HolderTable&) = delete;

  // The entries of a tag: calls visit(HolderEntry&) for each. It returns what the walk does next.
  enum class Next { kGoOn, kStop, kErase, kEraseAndStop };
  template <typename Visit>
  void Walk(uint64_t tag, Visit visit);
  template <typename Visit>  // visit(const HolderEntry&) returns whether to go on
  void Look(uint64_t tag, Visit visit) const;

  // Adds an entry. A segment that is full first loses the entries for which dead(const
  // HolderEntry&) holds; if these are few, it is split. False, and nothing is added, when the
  // directory is at its bound. REQUIRES: !entry.empty().
  template <typename Dead>
  bool Add(const HolderEntry& entry, Dead dead);
  // Moves the clock's hand on by one place. `visit(HolderEntry&)` is called for an entry there, and
  // returns whether to erase it.
  template <typename Visit>
  void Tick(Visit visit);
  // Asks the memory for the tag's entries, a short while before they are needed.
  void Prefetch(uint64_t tag) const { __builtin_prefetch(&SegmentOf(tag).entries[HomeOf(tag)]); }

  // All entries, stale ones included.
  int64_t size() const { return size_; }

 private:
  // Of a segment's places, how many may be taken: past seven in ten, walks get long.
  static constexpr uint32_t kTakenMax = kSegmentEntries * 7 / 10;
  struct Segment {
    std::unique_ptr<HolderEntry[]> entries;  // [kSegmentEntries]
    uint32_t taken = 0;
    int depth = 0;  // how many first bits all its tags share
  };

  static size_t HomeOf(uint64_t tag) { return (tag * 0x9e3779b97f4a7c15) >> 52; }
  static size_t After(size_t place) { return (place + 1) % kSegmentEntries; }
  uint32_t NumberOf(uint64_t tag) const {
    return directory_[depth_ == 0 ? 0 : tag >> (64 - depth_)];
  }
  Segment& SegmentOf(uint64_t tag) { return segments_[NumberOf(tag)]; }
  const Segment& SegmentOf(uint64_t tag) const { return segments_[NumberOf(tag)]; }

  static void Put(Segment& segment, const HolderEntry& entry);
  // Empties the place and closes the gap in the run.
  void EraseAt(Segment& segment, size_t place);
  template <typename Dead>
  void Purge(Segment& segment, Dead dead);
  // Takes all entries out of a segment.
  std::unique_ptr<HolderEntry[]> Empty(Segment& segment);
  // Splits the tag's segment in two. False at the directory's bound.
  bool Split(uint64_t tag);

  // Bound: --index-blocks over the least load of a segment.
  std::vector<Segment> segments_;
  // Bound: 2^kDepthMax.
  std::vector<uint32_t> directory_;
  int depth_ = 0;
  int64_t size_ = 0;
  size_t hand_segment_ = 0, hand_place_ = 0;
};

template <typename Visit>
void HolderTable::Walk(uint64_t tag, Visit visit) {
  Segment& segment = SegmentOf(tag);
  for (size_t place = HomeOf(tag); !segment.entries[place].empty();) {
    if (segment.entries[place].tag != tag) {
      place = After(place);
      continue;
    }
    const Next next = visit(segment.entries[place]);
    if (next == Next::kErase || next == Next::kEraseAndStop)
      EraseAt(segment, place);  // another entry may have moved here
    else
      place = After(place);
    if (next == Next::kStop || next == Next::kEraseAndStop) return;
  }
}

template <typename Visit>
void HolderTable::Look(uint64_t tag, Visit visit) const {
  const Segment& segment = SegmentOf(tag);
  for (size_t place = HomeOf(tag); !segment.entries[place].empty(); place = After(place))
    if (segment.entries[place].tag == tag && !visit(segment.entries[place])) return;
}

template <typename Dead>
bool HolderTable::Add(const HolderEntry& entry, Dead dead) {
  if (SegmentOf(entry.tag).taken >= kTakenMax) {
    Purge(SegmentOf(entry.tag), dead);
    while (SegmentOf(entry.tag).taken >= kTakenMax - kTakenMax / 8)
      if (!Split(entry.tag)) return false;
  }
  Put(SegmentOf(entry.tag), entry);
  ++size_;
  return true;
}

template <typename Dead>
void HolderTable::Purge(Segment& segment, Dead dead) {
  const auto before = segment.taken;
  const std::unique_ptr<HolderEntry[]> old = Empty(segment);
  for (size_t i = 0; i < kSegmentEntries; ++i)
    if (!old[i].empty() && !dead(old[i])) Put(segment, old[i]);
  size_ -= before - segment.taken;
}

template <typename Visit>
void HolderTable::Tick(Visit visit) {
  Segment& segment = segments_[hand_segment_];
  HolderEntry& entry = segment.entries[hand_place_];
  if (!entry.empty() && visit(entry)) {
    EraseAt(segment, hand_place_);
    return;  // another entry may have moved here
  }
  hand_place_ = After(hand_place_);
  if (hand_place_ == 0) hand_segment_ = (hand_segment_ + 1) % segments_.size();
}

}  // namespace tandem::router
