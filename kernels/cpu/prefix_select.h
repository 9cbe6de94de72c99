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

// Reorders so that keys[0, result) is the shortest ascending prefix whose masses reach `target`
// (all keys when none does). Expected linear time: quickselect, pivots by median of three.
TANDEM_INLINE int32_t SelectPrefix(const PrefixQuery& query) {
  uint64_t* keys = query.keys;
  uint64_t* masses = query.masses;
  auto swap = [&](int32_t a, int32_t b) {
    const uint64_t key = keys[a];
    keys[a] = keys[b];
    keys[b] = key;
    if (masses == nullptr) return;
    const uint64_t mass = masses[a];
    masses[a] = masses[b];
    masses[b] = mass;
  };
  int32_t low = 0, high = query.count;
  uint64_t reached = 0;  // by keys[0, low), all of which belong to the prefix
  while (low < high) {
    const int32_t middle = low + (high - low) / 2, last = high - 1;
    if (keys[middle] < keys[low]) swap(middle, low);
    if (keys[last] < keys[low]) swap(last, low);
    if (keys[middle] < keys[last]) swap(middle, last);  // the median is the pivot, last
    int32_t boundary = low;
    uint64_t left = 0;
    for (int32_t i = low; i < last; ++i) {
      if (keys[i] >= keys[last]) continue;
      left += masses == nullptr ? 1 : masses[i];
      swap(i, boundary++);
    }
    swap(boundary, last);
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
