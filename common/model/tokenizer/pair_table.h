// Merges by pair of token ids: open addressing over 16-byte slots.
// Thread safety: built once, then const methods from any thread. Owner: BpeModel.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/numeric/bits.h"
#include "common/base/ids.h"

namespace tandem::model::tokenizer_internal {

class PairTable {
 public:
  struct Slot {
    TokenId left = -1;  // -1: empty
    TokenId right = -1;
    uint32_t rank = 0;
    TokenId merged = -1;
  };

  void Reserve(size_t num_pairs) {
    slots_.assign(absl::bit_ceil(2 * num_pairs + 2), Slot());
    mask_ = slots_.size() - 1;
  }

  // A pair given again takes the later rank, as in Hugging Face's table.
  // REQUIRES: fewer than Reserve's num_pairs were set.
  void Set(const Slot& entry) {
    size_t i = Home(entry.left, entry.right);
    while (slots_[i].left != -1 && !IsPair(slots_[i], entry.left, entry.right)) i = (i + 1) & mask_;
    slots_[i] = entry;
  }

  // nullptr when the pair has no merge.
  const Slot* Find(TokenId left, TokenId right) const {
    if (slots_.empty()) return nullptr;
    for (size_t i = Home(left, right); slots_[i].left != -1; i = (i + 1) & mask_) {
      if (IsPair(slots_[i], left, right)) return &slots_[i];
    }
    return nullptr;
  }

 private:
  static bool IsPair(const Slot& slot, TokenId left, TokenId right) {
    return slot.left == left && slot.right == right;
  }
  size_t Home(TokenId left, TokenId right) const {
    uint64_t h = (uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right)) *
                 0x9E3779B97F4A7C15u;  // 2^64 / golden ratio
    h ^= h >> 32;
    return h & mask_;
  }

  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

}  // namespace tandem::model::tokenizer_internal
