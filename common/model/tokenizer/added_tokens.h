// Finds tokens that are matched in the text before it is split into words: control tokens, and
// tokens that users or trainers added. If several match, the leftmost wins, then the longest.
//
// Thread safety: built once, then const methods from any thread. Owner: TokenizerData, which has
// two: one for the text as given, one for tokens that are matched in normalised text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "common/base/ids.h"

namespace tandem::model::tokenizer_internal {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  bool special = false;      // a control token
  bool single_word = false;  // not inside a word
  bool lstrip = false;       // takes white space to its left with it
  bool rstrip = false;       // and to its right
  bool normalized = false;   // matched in normalised text
};

class AddedTokenMatcher {
 public:
  // One stretch of the text: a token's, or (id == kNoToken) text between tokens.
  struct Piece {
    TokenId id;
    size_t begin;
    size_t end;
  };

  // `content`: what to look for (the token's, or its normal form). Ignored when empty or not UTF-8;
  // the first token with a content wins.
  void Add(const AddedToken& token, absl::string_view content);
  bool empty() const { return tokens_.empty(); }

  // Walks the text in order, covering it.
  class Walk {
   public:
    Walk(const AddedTokenMatcher* matcher, absl::string_view text, bool parse_special)
        : matcher_(matcher), text_(text), parse_special_(parse_special) {}
    // False at the end.
    bool Next(Piece* piece);

   private:
    const AddedTokenMatcher* matcher_;
    absl::string_view text_;
    bool parse_special_;
    size_t position_ = 0;  // all before was handed out
    size_t search_ = 0;    // matches before were taken or passed over
    bool has_held_ = false;
    Piece held_{};
  };

 private:
  struct Entry {
    TokenId id;
    bool special;
    bool single_word;
    bool lstrip;
    bool rstrip;
  };
  // The index in tokens_ of the longest content at text[begin], with its length; -1 if none.
  int LongestAt(absl::string_view text, size_t begin, size_t* length) const;

  std::vector<Entry> tokens_;
  std::array<bool, 256> is_first_byte_{};
  // Trie: (node << 8 | byte) to node; node 0 is the root.
  absl::flat_hash_map<uint64_t, int32_t> edges_;
  std::vector<int32_t> token_at_node_ = {-1};
};

}  // namespace tandem::model::tokenizer_internal
