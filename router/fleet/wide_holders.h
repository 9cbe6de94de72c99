// The holders of blocks that many nodes hold, such as a system prompt's: for each such block a row
// of two bits for each slot, which say on which tier the node holds the block (0 = it does not). A
// row costs as much as 64 entries of the table when the fleet has 4,096 slots, and answers "does
// this node hold it" at once.
//
// A row takes its memory however few holders are left, so it takes at least `holders_min` places of
// the index's bound.
//
// Thread safety: none; PrefixIndex owns it.
// Invariants: a row's count is the number of its slots that are not 0; rows() * holders_min is at
// most places().
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "router/fleet/holder_table.h"

namespace tandem::router {

// A set of slots.
// Bound: the fleet's slots.
using SlotSet = std::vector<uint64_t>;

class WideHolders {
 public:
  WideHolders(size_t slots_max, uint32_t holders_min)
      : words_((slots_max + 63) / 64), holders_min_(holders_min) {}

  // A new row without holders.
  uint32_t Add() {
    places_ += holders_min_;
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
    places_ -= std::max(counts_[row], holders_min_);
    counts_[row] = 0;
    free_.push_back(row);
  }

  // Returns whether the slot did not hold the block before.
  bool Set(uint32_t row, NodeSlot slot, Tier tier) {
    const bool added = TierOf(row, slot) == 0;
    Write(row, slot, static_cast<uint8_t>(tier));
    if (added && ++counts_[row] > holders_min_) ++places_;
    return added;
  }
  // Returns whether the slot held the block.
  bool Clear(uint32_t row, NodeSlot slot) {
    if (TierOf(row, slot) == 0) return false;
    Write(row, slot, 0);
    if (counts_[row]-- > holders_min_) --places_;
    return true;
  }
  // The node left. Cost: a look at each row.
  void ClearAll(NodeSlot slot) {
    for (uint32_t row = 0; row < counts_.size(); ++row)
      if (counts_[row] > 0) Clear(row, slot);
  }

  uint8_t TierOf(uint32_t row, NodeSlot slot) const {
    const uint64_t* bits = bits_[row].data();
    const uint64_t low = bits[slot / 64] >> (slot % 64),
                   high = bits[words_ + slot / 64] >> (slot % 64);
    return static_cast<uint8_t>((low & 1) | (high & 1) << 1);
  }
  uint32_t count(uint32_t row) const { return counts_[row]; }
  size_t words() const { return words_; }
  // Rows that take memory, those without holders included until they are freed.
  int64_t rows() const { return std::ssize(counts_) - std::ssize(free_); }
  // What the rows take of the index's bound.
  int64_t places() const { return places_; }
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
  const uint32_t holders_min_;
  int64_t places_ = 0;
  // Bound: --index-blocks over PrefixIndex::kWideMin, for all three.
  std::vector<std::vector<uint64_t>> bits_;  // by row; the tiers' low bits, then their high bits
  std::vector<uint32_t> counts_;
  std::vector<uint32_t> free_;
};

}  // namespace tandem::router
