// The holders of blocks that many nodes hold, such as a system prompt's: for each such block a row
// of two bits for each slot, which say on which tier the node holds the block (0 = it does not). A
// row costs as much as 64 entries of the table when the fleet has 4,096 slots, and answers "does
// this node hold it" at once.
//
// Thread safety: none; PrefixIndex owns it.
// Invariants: a row's count is the number of its slots that are not 0.
#pragma once

#include <cstdint>
#include <vector>

#include "router/fleet/holder_table.h"

namespace tandem::router {

// A set of slots.
// Bound: the fleet's slots.
using SlotSet = std::vector<uint64_t>;

class WideHolders {
 public:
  explicit WideHolders(size_t slots_max) : words_((slots_max + 63) / 64) {}

  // A new row without holders.
  uint32_t Add() {
    uint32_t row = static_cast<uint32_t>(counts_.size());
    if (free_.empty()) {
      counts_.push_back(0);
      bits_.emplace_back(2 * words_);
    } else {
      row = free_.back();
      free_.pop_back();
    }
    return row;
  }
  void Free(uint32_t row) {
    bits_[row].assign(2 * words_, 0);
    counts_[row] = 0;
    free_.push_back(row);
  }

  // Returns whether the slot did not hold the block before.
  bool Set(uint32_t row, NodeSlot slot, Tier tier) {
    const bool added = TierOf(row, slot) == 0;
    Write(row, slot, static_cast<uint8_t>(tier));
    counts_[row] += added ? 1 : 0;
    return added;
  }
  // Returns whether the slot held the block.
  bool Clear(uint32_t row, NodeSlot slot) {
    if (TierOf(row, slot) == 0) return false;
    Write(row, slot, 0);
    --counts_[row];
    return true;
  }
  // The node left. Returns how many blocks it held. Cost: a look at each row.
  int64_t ClearAll(NodeSlot slot) {
    int64_t cleared = 0;
    for (uint32_t row = 0; row < counts_.size(); ++row)
      if (counts_[row] > 0 && Clear(row, slot)) ++cleared;
    return cleared;
  }

  uint8_t TierOf(uint32_t row, NodeSlot slot) const {
    const uint64_t* bits = bits_[row].data();
    const uint64_t low = bits[slot / 64] >> (slot % 64),
                   high = bits[words_ + slot / 64] >> (slot % 64);
    return static_cast<uint8_t>((low & 1) | (high & 1) << 1);
  }
  uint32_t count(uint32_t row) const { return counts_[row]; }
  size_t words() const { return words_; }
  // The slots [64 * word, 64 * word + 64) that hold the block, as bits.
  uint64_t Holding(uint32_t row, size_t word) const {
    return bits_[row][word] | bits_[row][words_ + word];
  }

 private:
  void Write(uint32_t row, NodeSlot slot, uint8_t tier) {
    const uint64_t bit = uint64_t{1} << (slot % 64);
    uint64_t& low = bits_[row][slot / 64];
    uint64_t& high = bits_[row][words_ + slot / 64];
    low = (tier & 1) != 0 ? low | bit : low & ~bit;
    high = (tier & 2) != 0 ? high | bit : high & ~bit;
  }

  const size_t words_;
  // Bound: --index-blocks over PrefixIndex::kWideMin, for all three.
  std::vector<std::vector<uint64_t>> bits_;  // by row; the tiers' low bits, then their high bits
  std::vector<uint32_t> counts_;
  std::vector<uint32_t> free_;
};

}  // namespace tandem::router
