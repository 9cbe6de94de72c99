// Finds the most likely tokens without sorting. Thread safety: pure functions of their arguments;
// one thread a buffer.
#pragma once

#include "kernels/cpu/v16.h"

namespace tandem::kernels::TANDEM_ISA {

// A token and its logit as one integer: ascending keys are descending logits, then ascending ids.
TANDEM_INLINE uint64_t MakeKey(float logit, int32_t token) {
  uint32_t bits = 0;
  const float plus_zero = logit + 0.0f;  // -0 and 0 are one logit
  __builtin_memcpy(&bits, &plus_zero, sizeof(bits));
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(token);
}
TANDEM_INLINE uint32_t TokenOfKey(uint64_t key) { return static_cast<uint32_t>(key); }
TANDEM_INLINE float LogitOfKey(uint64_t key) {
  const uint32_t ascending = ~static_cast<uint32_t>(key >> 32);
  const uint32_t bits = (ascending >> 31) != 0 ? ascending & 0x7fffffffu : ~ascending;
  float logit = 0;
  __builtin_memcpy(&logit, &bits, sizeof(logit));
  return logit;
}

struct PrefixQuery {
  uint64_t* keys;    // distinct, reordered
  uint64_t* masses;  // of the keys, reordered with them; nullptr: every mass is 1
  int32_t count;
  uint64_t target;  // > 0
};

// The keys' order is the tokens' order, which a client can choose by logit_bias. So quickselect may
// look at this many keys for each key; what is left then is selected by digits.
constexpr int64_t kQuickLooks = 8;

TANDEM_INLINE void SwapKeys(const PrefixQuery& query, int32_t a, int32_t b) {
  const uint64_t key = query.keys[a];
  query.keys[a] = query.keys[b];
  query.keys[b] = key;
  if (query.masses == nullptr) return;
  const uint64_t mass = query.masses[a];
  query.masses[a] = query.masses[b];
  query.masses[b] = mass;
}

// The keys that a selection has not decided yet: all before `low` belong to the prefix, none from
// `high` on does.
struct Undecided {
  int32_t low, high;
  uint64_t reached;  // the masses of keys[0, low)
};

// Moves the keys of `range` whose digit at `shift` is `digit` (kLess: less than it) to its
// beginning; returns how many.
template <bool kLess>
TANDEM_INLINE int32_t MoveForward(const PrefixQuery& query, Undecided range, int shift,
                                  uint64_t digit) {
  int32_t boundary = range.low;
  for (int32_t i = range.low; i < range.high; ++i) {
    const uint64_t own = query.keys[i] >> shift & 0xff;
    if (kLess ? own < digit : own == digit) SwapKeys(query, i, boundary++);
  }
  return boundary - range.low;
}

// SelectPrefix, of what is `left`, by one digit of 8 bits after the other: two looks at a key for
// each of the eight digits, whatever the keys are. REQUIRES: left.reached < query.target.
TANDEM_INLINE int32_t SelectByDigits(const PrefixQuery& query, Undecided left) {
  for (int shift = 56; shift >= 0 && left.low < left.high; shift -= 8) {
    uint64_t sums[256] = {};
    for (int32_t i = left.low; i < left.high; ++i) {
      sums[query.keys[i] >> shift & 0xff] += query.masses == nullptr ? 1 : query.masses[i];
    }
    // The digit at which the prefix ends. None: all keys belong to it.
    uint64_t digit = 0;
    while (digit < 256 && left.reached + sums[digit] < query.target) {
      left.reached += sums[digit++];
    }
    if (digit == 256) return left.high;
    left.low += MoveForward<true>(query, left, shift, digit);
    left.high = left.low + MoveForward<false>(query, left, shift, digit);
  }
  return left.high;
}

// Reorders so that keys[0, result) is the shortest ascending prefix whose masses reach `target`
// (all keys when none does). Linear time: quickselect, pivots by median of three, and by digits
// where these pivots are bad.
TANDEM_INLINE int32_t SelectPrefix(const PrefixQuery& query) {
  uint64_t* keys = query.keys;
  uint64_t* masses = query.masses;
  Undecided range = {0, query.count, 0};
  auto& [low, high, reached] = range;
  int64_t looks = kQuickLooks * query.count;
  while (low < high) {
    looks -= high - low;
    if (looks < 0) return SelectByDigits(query, range);
    const int32_t middle = low + (high - low) / 2, last = high - 1;
    if (keys[middle] < keys[low]) SwapKeys(query, middle, low);
    if (keys[last] < keys[low]) SwapKeys(query, last, low);
    // The median is the pivot, last.
    if (keys[middle] < keys[last]) SwapKeys(query, middle, last);
    int32_t boundary = low;
    uint64_t left = 0;
    for (int32_t i = low; i < last; ++i) {
      if (keys[i] >= keys[last]) continue;
      left += masses == nullptr ? 1 : masses[i];
      SwapKeys(query, i, boundary++);
    }
    SwapKeys(query, boundary, last);
    if (reached + left >= query.target) {
      high = boundary;
      continue;
    }
    reached += left + (masses == nullptr ? 1 : masses[boundary]);
    low = boundary + 1;
    if (reached >= query.target) return low;
  }
  return low;
}

}  // namespace tandem::kernels::TANDEM_ISA
