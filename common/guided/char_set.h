// Sets of Unicode code points, stored as sorted intervals. No set contains a surrogate (U+D800 to
// U+DFFF), because UTF-8 text contains none.
// Copies share their ranges, so a copy costs nothing.
// Thread safety: plain values.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace tandem::guided {

inline constexpr uint32_t kCodePointMax = 0x10FFFF;

struct CharRange {
  uint32_t low = 0, high = 0;  // inclusive
  friend bool operator==(const CharRange& a, const CharRange& b) {
    return a.low == b.low && a.high == b.high;
  }
};

class CharSet {
 public:
  CharSet() = default;
  explicit CharSet(std::vector<CharRange> ranges);  // in any order; they may overlap
  static CharSet Of(uint32_t low, uint32_t high) { return CharSet({{low, high}}); }
  static CharSet All() { return Of(0, kCodePointMax); }

  CharSet Complement() const;
  CharSet Union(const CharSet& other) const;
  CharSet Intersection(const CharSet& other) const;
  // Adds the other case of every ASCII letter.
  CharSet FoldAsciiCase() const;

  bool Contains(uint32_t code_point) const;
  bool empty() const { return ranges().empty(); }
  // Ascending and disjoint; no two of them are adjacent. Valid while the set lives, so a set
  // without a name has none to give.
  const std::vector<CharRange>& ranges() const& {
    static const std::vector<CharRange> none;
    return ranges_ == nullptr ? none : *ranges_;
  }
  const std::vector<CharRange>& ranges() const&& = delete;
  friend bool operator==(const CharSet& a, const CharSet& b) {
    return a.ranges_ == b.ranges_ || a.ranges() == b.ranges();
  }
  template <typename H>
  friend H AbslHashValue(H state, const CharSet& set) {
    for (const CharRange& range : set.ranges())
      state = H::combine(std::move(state), range.low, range.high);
    return state;
  }

 private:
  std::shared_ptr<const std::vector<CharRange>> ranges_;  // immutable; shared with copies
};

}  // namespace tandem::guided
