// The order in which a pool's cached blocks make room: first the one whose keeping is expected to
// save least for its bytes. All blocks of a pool take equally many bytes and nearly equal times to
// compute, so what counts is the chance that a prompt finds a block again. It falls with the time
// since a prompt last used the block, and rises with the number of prompts that did:
//
//   rank = blocks that were cached before it, ever + num_blocks * level
//   level = log2(uses), rounded down, at most kLevels - 1
//
// So a block that two prompts used stays as long as one that was used by one and came a whole
// pool of blocks later. Of equal levels the least recently used goes first, of equal ranks the one
// that was cached first. docs/adr/0083 has the measurement that chose this.
//
// Thread safety: none; the BlockPool owns it.
// Invariants: each level's list is ordered by rank. Insert and Erase take constant time; First
// looks at kLevels blocks, and at those for which not `evictable`.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <list>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "common/base/ids.h"

namespace tandem::kv {

class EvictionOrder {
 public:
  static constexpr int kLevels = 4;  // 1, 2, 4 and 8 uses

  struct Entry {
    BlockId block;
    int level = 0;
    uint64_t rank = 0;
  };
  using Place = std::list<Entry>::iterator;

  explicit EvictionOrder(int64_t num_blocks) : num_blocks_(static_cast<uint64_t>(num_blocks)) {}

  // `uses`: prompts that used the block, at least 1.
  Place Insert(BlockId block, uint32_t uses) {
    const int level = std::min(static_cast<int>(std::bit_width(uses)) - 1, kLevels - 1);
    std::list<Entry>& list = lists_[static_cast<size_t>(level)];
    ++size_;
    return list.insert(list.end(), {.block = block,
                                    .level = level,
                                    .rank = next_++ + num_blocks_ * static_cast<uint64_t>(level)});
  }
  void Erase(Place place) {
    --size_;
    lists_[static_cast<size_t>(place->level)].erase(place);
  }
  // The block that goes first among those for which `evictable`.
  std::optional<BlockId> First(absl::FunctionRef<bool(BlockId)> evictable) const;
  // All blocks, those that go last first.
  std::vector<BlockId> LastToFirst() const;
  int64_t size() const { return size_; }

 private:
  const uint64_t num_blocks_;
  // Bound: the pool's blocks, all lists together.
  std::array<std::list<Entry>, kLevels> lists_;
  int64_t size_ = 0;
  uint64_t next_ = 0;
};

}  // namespace tandem::kv
