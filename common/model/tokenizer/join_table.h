// Which pairs of neighbouring bytes lie inside some text that a merge makes. Where a word has any
// other pair, no merge can reach across, so the word is cut there and its parts are encoded
// separately with the same result: a long word becomes many short ones.
// Thread safety: built once, then const methods from any thread. Owner: BpeModel.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem::model::tokenizer_internal {

class JoinTable {
 public:
  // Starts a table in which nothing is joined. Before that everything is.
  void Enable() { words_.assign(65536 / 64, 0); }
  // Notes a text that a merge makes. REQUIRES: Enable was called.
  void Note(absl::string_view made) {
    for (size_t i = 1; i < made.size(); ++i) {
      const uint32_t pair = Pair(made[i - 1], made[i]);
      words_[pair / 64] |= uint64_t{1} << (pair % 64);
    }
  }

  bool enabled() const { return !words_.empty(); }
  // Whether some merge may make a text that has `left` and `right` side by side.
  bool MayJoin(char left, char right) const {
    if (!enabled()) return true;
    const uint32_t pair = Pair(left, right);
    return (words_[pair / 64] >> (pair % 64) & 1) != 0;
  }

 private:
  static uint32_t Pair(char left, char right) {
    return uint32_t{static_cast<uint8_t>(left)} << 8 | static_cast<uint8_t>(right);
  }

  std::vector<uint64_t> words_;  // one bit for each pair of bytes
};

}  // namespace tandem::model::tokenizer_internal
