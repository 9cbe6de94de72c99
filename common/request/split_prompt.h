// How much of a prompt a node keeps when it holds or computes the prompt's end only, and lends the
// units before. Routers plan by the same rule, so that nodes take what routers send them.
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::request {

// The most blocks of one prompt in a pool of so many blocks. A prompt that is too long for the pool
// gets half of it: the node keeps room for what else it runs.
inline int64_t SplitBlocksMax(int64_t pool, bool too_long) { return too_long ? pool / 2 : pool; }

// A node's pool, and whether the prompt is too long for it.
struct SplitPool {
  int64_t blocks = 0;
  bool too_long = false;
};
// The most blocks of one prompt that passes through both pools.
inline int64_t SplitBlocksMax(const SplitPool& decode, const SplitPool& prefill) {
  return std::min(SplitBlocksMax(decode.blocks, decode.too_long),
                  SplitBlocksMax(prefill.blocks, prefill.too_long));
}

// Whether a node with a pool of so many blocks can compute a prompt of `blocks`, of which it lends
// the first `lent`.
inline bool CanComputeSplit(int64_t blocks, int64_t lent, int64_t pool) {
  return blocks <= pool || blocks - lent <= SplitBlocksMax(pool, /*too_long=*/true);
}

}  // namespace tandem::request
