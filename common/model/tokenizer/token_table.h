// The texts of the vocabulary: id to text and text to id, in three flat arrays so that a quarter of
// a million tokens load in tens of milliseconds.
// Thread safety: built once, then const methods from any thread. Owner: TokenizerData.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace tandem::model::tokenizer_internal {

inline constexpr TokenId kNoToken = -1;

class TokenTable {
 public:
  // Makes room for `num_tokens` tokens of `text_bytes` in all. Call once, before Add.
  void Reserve(size_t num_tokens, size_t text_bytes);

  // Gives `id` a text, findable unless an earlier id has the same text.
  // REQUIRES: id >= 0 has no text yet; fewer than Reserve's num_tokens were added.
  void Add(absl::string_view text, TokenId id);

  // kNoToken when no token has this text.
  TokenId Find(absl::string_view text) const;

  bool Has(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < spans_.size() && spans_[id].length != kNoText;
  }
  // Empty when the id has none.
  absl::string_view Text(TokenId id) const {
    return Has(id) ? absl::string_view(pool_).substr(spans_[id].offset, spans_[id].length)
                   : absl::string_view();
  }
  // One more than the highest id added.
  int32_t id_limit() const { return static_cast<int32_t>(spans_.size()); }

 private:
  static constexpr uint32_t kNoText = 0xFFFFFFFFu;
  struct Span {
    uint64_t offset = 0;
    uint32_t length = kNoText;
  };
  struct Slot {
    uint32_t tag = 0;  // the hash's upper half
    TokenId id = kNoToken;
  };

  std::string pool_;
  std::vector<Span> spans_;  // by id
  std::vector<Slot> slots_;  // open addressing, at most half full
  size_t mask_ = 0;
};

}  // namespace tandem::model::tokenizer_internal
