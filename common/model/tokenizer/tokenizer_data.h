// The parts of a tokenizer, as the loaders (gguf_loader.cc, json_loader.cc) assemble them.
// Tokenizer (tokenizer.h) encodes and decodes with them. Thread safety: const from any thread once
// loaded; the scratch pool, the only part that changes afterwards, has its own lock. Owner:
// Tokenizer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/ids.h"
#include "common/model/checkpoint.h"
#include "common/model/tokenizer/added_tokens.h"
#include "common/model/tokenizer/bpe_model.h"
#include "common/model/tokenizer/encode_scratch.h"
#include "common/model/tokenizer/normalizer.h"
#include "common/model/tokenizer/pre_tokenizer.h"

namespace tandem::model::tokenizer_internal {

inline constexpr absl::string_view kMetaspaceMark = "\xE2\x96\x81";  // U+2581
// Ids beyond this are refused: an embedding table of that many rows is a corrupt file.
inline constexpr int64_t kTokenIdsMax = int64_t{1} << 23;

// How tokens become text again.
struct DecoderSpec {
  bool byte_level = false;                                    // tokens are bytes
  std::vector<std::pair<std::string, std::string>> replaces;  // in each token, in this order
  bool byte_fallback = false;                                 // runs of <0x..> are bytes
  // Leading spaces dropped from the whole text.
  int strip_left = 0;
  // The first token loses its marks, all others' become spaces.
  std::string metaspace_mark;
  bool metaspace_drops_first = false;

  // A token's text with its marks turned to spaces. `is_first`: no kept token came before.
  std::string Spaced(std::string text, bool is_first) const;
};

// Where words of a SentencePiece vocabulary may be cut before BPE without changing its result:
// before a mark, unless a token that a merge makes has the preceding character and the mark side by
// side.
struct MarkCuts {
  bool enabled = false;
  absl::flat_hash_set<uint32_t> unsafe_before;  // characters that a token has before a mark
};

struct TokenizerData {
  BpeModel bpe;
  bool byte_level = false;
  // Tokens that BPE does not produce: added tokens and, in a byte-level vocabulary, tokens whose
  // spelling is not one of bytes. By id; and ids by text.
  absl::flat_hash_map<TokenId, std::string> other_texts;
  absl::flat_hash_map<std::string, TokenId> other_ids;
  absl::flat_hash_set<TokenId> special_ids;
  int32_t vocab_size = 0;

  AddedTokenMatcher raw_added;
  AddedTokenMatcher normalized_added;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  MarkCuts mark_cuts;
  DecoderSpec decoder;

  std::vector<TokenId> prefix_ids;
  std::vector<TokenId> suffix_ids;
  std::optional<TokenId> bos_token_id;
  std::optional<TokenId> eos_token_id;
  std::optional<TokenId> unknown_token_id;
  std::optional<TokenId> padding_token_id;

  mutable EncodeScratchPool scratch_pool;

  // Registers an added token's text, id and flags, and a pattern to match it with.
  void AddToken(const AddedToken& token);
  // The token's text as its checkpoint spells it, or as bytes in a byte-level vocabulary.
  absl::string_view TokenText(TokenId id) const;
  bool HasToken(TokenId id) const { return bpe.tokens().Has(id) || other_texts.contains(id); }
  std::optional<TokenId> FindToken(absl::string_view spelling) const;
};

absl::StatusOr<std::unique_ptr<TokenizerData>> LoadGguf(const TokenizerSource& source);
absl::StatusOr<std::unique_ptr<TokenizerData>> LoadJson(const TokenizerSource& source);

// The byte that a token spelled "<0x0A>" stands for; -1 for other spellings.
int ByteOfFallbackSpelling(absl::string_view spelling);
// "<0x0A>".
std::string FallbackSpellingOfByte(int byte);

// Splits "left right" into its two texts. Errors: kInvalidArgument naming merge `index`.
absl::StatusOr<std::pair<absl::string_view, absl::string_view>> SplitMerge(absl::string_view merge,
                                                                           size_t index);

// Collects merges by pair for a vocabulary that is complete.
class MergesBuilder {
 public:
  // `model` must outlive this.
  MergesBuilder(BpeModel* model, bool byte_level, size_t num_merges);
  // Errors: kInvalidArgument when a side or the result is not a token, naming it and `rank`.
  absl::Status Add(absl::string_view left, absl::string_view right, uint32_t rank);
  // Hands the merges to the model and works out where words may be cut.
  void Finish(MarkCuts* cuts);

 private:
  absl::StatusOr<TokenId> Find(absl::string_view spelling, uint32_t rank) const;

  BpeModel* model_;
  bool byte_level_;
  PairTable pairs_;
  std::vector<TokenId> made_;
  bool merges_bytes_ = false;  // a token of a byte takes part in a merge
};

// Adds the characters that `text` has before a mark to `cuts`.
void NoteMarks(absl::string_view text, MarkCuts* cuts);

}  // namespace tandem::model::tokenizer_internal
