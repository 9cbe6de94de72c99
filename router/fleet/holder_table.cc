#include "router/fleet/holder_table.h"

#include <utility>

namespace tandem::router {
namespace {

std::unique_ptr<HolderEntry[]> NewPlaces() {
  return std::make_unique<HolderEntry[]>(HolderTable::kSegmentEntries);
}

}  // namespace

HolderTable::HolderTable() {
  segments_.push_back({NewPlaces(), 0, 0});
  directory_.push_back(0);
}

void HolderTable::Put(Segment& segment, const HolderEntry& entry) {
  size_t place = HomeOf(entry.tag);
  while (!segment.entries[place].empty()) place = After(place);
  segment.entries[place] = entry;
  ++segment.taken;
}

std::unique_ptr<HolderEntry[]> HolderTable::Empty(Segment& segment) {
  segment.taken = 0;
  return std::exchange(segment.entries, NewPlaces());
}

void HolderTable::EraseAt(Segment& segment, size_t place) {
  // Knuth, The Art of Computer Programming 3, 6.4, algorithm R: entries after the gap move into it
  // unless their home lies between the gap and them.
  HolderEntry* const entries = segment.entries.get();
  for (size_t from = After(place); !entries[from].empty(); from = After(from)) {
    const size_t way = (from - HomeOf(entries[from].tag)) % kSegmentEntries;
    if (way < (from - place) % kSegmentEntries) continue;
    entries[place] = entries[from];
    place = from;
  }
  entries[place] = {};
  --segment.taken;
  --size_;
}

bool HolderTable::Split(uint64_t tag) {
  if (SegmentOf(tag).depth == depth_) {
    if (depth_ == kDepthMax) return false;
    std::vector<uint32_t> twice(2 * directory_.size());
    for (size_t i = 0; i < twice.size(); ++i) twice[i] = directory_[i / 2];
    directory_ = std::move(twice);
    ++depth_;
  }
  const uint32_t number = NumberOf(tag);
  const auto added = static_cast<uint32_t>(segments_.size());
  const int depth = ++segments_[number].depth;
  segments_.push_back({NewPlaces(), 0, depth});
  // Of the directory's places for the old segment, the upper half now names the new one.
  const size_t span = size_t{1} << (depth_ - depth + 1);
  const size_t first = (tag >> (64 - depth_)) / span * span;
  for (size_t i = first + span / 2; i < first + span; ++i) directory_[i] = added;

  const std::unique_ptr<HolderEntry[]> old = Empty(segments_[number]);
  for (size_t i = 0; i < kSegmentEntries; ++i)
    if (!old[i].empty()) Put(SegmentOf(old[i].tag), old[i]);
  return true;
}

}  // namespace tandem::router
