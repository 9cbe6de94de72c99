// Byte-pair encoding of one word: the word starts as one symbol per character; of all adjacent
// pairs that have a merge, the pair of lowest rank (leftmost among equals) is joined, until no pair
// has a merge. Short words scan an array; long ones use a linked list and a heap, so the cost is
// n log n. A word is first cut where no merge can reach across (join_table.h).
//
// Merges either come as a table of pairs (tokenizer.json, GGUF merges), or follow from scores
// (SentencePiece): a pair merges when its text is a token, better scores first; the token is found
// by its text, without a table of merges. Both give the same ids as Hugging Face's BPE.
//
// Thread safety: built once, then const methods from any thread; each caller passes its own
// scratch. Owner: TokenizerData.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/tokenizer/join_table.h"
#include "common/model/tokenizer/pair_table.h"
#include "common/model/tokenizer/token_table.h"
#include "common/model/tokenizer/window_join.h"

namespace tandem::model::tokenizer_internal {

// A piece of the word, in a doubly linked list. `key` orders its pair with the next symbol, which
// would make `merged`.
struct BpeSymbol {
  TokenId id;
  TokenId merged;
  uint32_t key;
  uint32_t begin;
  uint32_t end;
  int32_t previous;
  int32_t next;
  uint16_t num_chars;  // saturating; 0 for one byte of an unknown character
  bool mergeable;
  bool dead;
};

struct BpeScratch {
  std::vector<BpeSymbol> symbols;
  std::vector<BpeSymbol> seam_symbols;
  BpePieces window;
  std::vector<uint64_t> heap;  // key << 32 | symbol index, smallest first
};

class BpeModel {
 public:
  // Ranks and a tie-break share 32 bits.
  static constexpr int64_t kRanksMax = (int64_t{1} << 24) - 1;
  static constexpr uint32_t kNoMerge = 0xFFFFFFFFu;

  struct Options {
    bool byte_level = false;     // a word's characters are its bytes
    bool ignore_merges = false;  // a word that is a token is that token
    bool fuse_unknown = false;
    TokenId unknown_id = kNoToken;  // kNoToken: unknown characters are dropped
    bool byte_fallback = false;
    // The tokens of the 256 bytes, for byte_fallback; kNoToken where there is none.
    std::array<TokenId, 256> byte_ids;
  };

  // The vocabulary BPE may produce; filled by the loader before the merges are.
  TokenTable& tokens() { return tokens_; }
  const TokenTable& tokens() const { return tokens_; }

  void SetOptions(const Options& options);
  const Options& options() const { return options_; }

  // Merges by pair. `joins` has what they make noted, or is not enabled.
  void SetMerges(PairTable merges, JoinTable joins) {
    pairs_ = std::move(merges);
    joins_ = std::move(joins);
  }
  // Merges by score: ranks[id] is the rank of a merge that makes token `id`, kNoMerge for a token
  // that no merge makes nor uses. REQUIRES: one rank per id of tokens().
  void SetRanks(std::vector<uint32_t> ranks);

  // Appends the ids of `word`. REQUIRES: well-formed UTF-8 unless byte_level.
  void Encode(absl::string_view word, BpeScratch* scratch, std::vector<TokenId>* out) const;

 private:
  struct Merge {
    uint32_t key = kNoMerge;
    TokenId id = kNoToken;
  };
  template <bool kByScore>
  Merge Find(absl::string_view word, const BpeSymbol& left, const BpeSymbol& right) const;
  // Merges one part of the word; what was joined to its left neighbour is dead afterwards.
  void MergePart(absl::string_view word, absl::Span<BpeSymbol> part,
                 std::vector<uint64_t>* heap) const;
  // Encodes a long part by windows and appends its ids. False when the windows cannot be joined;
  // the contents of `part` are then undefined.
  bool EncodeWindows(absl::string_view word, absl::Span<BpeSymbol> part, BpeScratch* scratch,
                     std::vector<TokenId>* out) const;
  template <bool kByScore>
  void MergeShort(absl::string_view word, absl::Span<BpeSymbol> part) const;
  template <bool kByScore>
  void MergeLong(absl::string_view word, absl::Span<BpeSymbol> part,
                 std::vector<uint64_t>* heap) const;
  // Where the part that starts with symbol `begin` ends.
  size_t EndOfPart(absl::string_view word, const std::vector<BpeSymbol>& symbols,
                   size_t begin) const;
  void Split(absl::string_view word, std::vector<BpeSymbol>* symbols) const;
  bool SplitToBytes(absl::string_view character, uint32_t begin,
                    std::vector<BpeSymbol>* symbols) const;

  TokenTable tokens_;
  Options options_;
  PairTable pairs_;
  JoinTable joins_;
  std::vector<uint32_t> ranks_;  // empty: merges by pair
  uint32_t made_bytes_max_ = 0;  // the longest token that a merge by score makes
  std::array<TokenId, 256> single_byte_ids_;
};

}  // namespace tandem::model::tokenizer_internal
