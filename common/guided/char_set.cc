#include "common/guided/char_set.h"

#include <algorithm>
#include <utility>

namespace tandem::guided {
namespace {

constexpr uint32_t kSurrogateFirst = 0xD800, kSurrogateLast = 0xDFFF;

void AddRange(uint32_t low, uint32_t high, std::vector<CharRange>& out) {
  if (low > high) return;
  if (!out.empty() && out.back().high + 1 >= low) {
    out.back().high = std::max(out.back().high, high);
  } else {
    out.push_back({low, high});
  }
}

}  // namespace

CharSet::CharSet(std::vector<CharRange> ranges) {
  std::vector<CharRange> valid;
  for (const CharRange& range : ranges) {
    const uint32_t high = std::min(range.high, kCodePointMax);
    if (range.low > high) continue;
    if (range.low < kSurrogateFirst)
      valid.push_back({range.low, std::min(high, kSurrogateFirst - 1)});
    if (high > kSurrogateLast) valid.push_back({std::max(range.low, kSurrogateLast + 1), high});
  }
  std::sort(valid.begin(), valid.end(), [](const CharRange& a, const CharRange& b) {
    return a.low != b.low ? a.low < b.low : a.high < b.high;
  });
  std::vector<CharRange> merged;
  for (const CharRange& range : valid) AddRange(range.low, range.high, merged);
  merged.shrink_to_fit();
  ranges_ = std::make_shared<const std::vector<CharRange>>(std::move(merged));
}

CharSet CharSet::Complement() const {
  std::vector<CharRange> gaps;
  uint32_t next = 0;
  for (const CharRange& range : ranges()) {
    if (range.low > next) gaps.push_back({next, range.low - 1});
    next = range.high + 1;
  }
  if (next <= kCodePointMax) gaps.push_back({next, kCodePointMax});
  return CharSet(std::move(gaps));
}

CharSet CharSet::Union(const CharSet& other) const {
  std::vector<CharRange> all = ranges();
  all.insert(all.end(), other.ranges().begin(), other.ranges().end());
  return CharSet(std::move(all));
}

CharSet CharSet::Intersection(const CharSet& other) const {
  std::vector<CharRange> both;
  for (size_t i = 0, j = 0; i < ranges().size() && j < other.ranges().size();) {
    const CharRange& a = ranges()[i];
    const CharRange& b = other.ranges()[j];
    const uint32_t low = std::max(a.low, b.low), high = std::min(a.high, b.high);
    if (low <= high) both.push_back({low, high});
    a.high < b.high ? ++i : ++j;
  }
  return CharSet(std::move(both));
}

CharSet CharSet::FoldAsciiCase() const {
  std::vector<CharRange> all = ranges();
  const CharSet lower = Intersection(Of('a', 'z')), upper = Intersection(Of('A', 'Z'));
  for (const CharRange& range : lower.ranges()) all.push_back({range.low - 32, range.high - 32});
  for (const CharRange& range : upper.ranges()) all.push_back({range.low + 32, range.high + 32});
  return CharSet(std::move(all));
}

bool CharSet::Contains(uint32_t code_point) const {
  const auto it =
      std::upper_bound(ranges().begin(), ranges().end(), code_point,
                       [](uint32_t value, const CharRange& range) { return value < range.low; });
  return it != ranges().begin() && code_point <= std::prev(it)->high;
}

}  // namespace tandem::guided
