// Text to token ids and back, exactly as the checkpoint's Hugging Face tokenizer does it:
// byte-level BPE (GPT-2, SmolLM, Llama 3, Qwen 2 pre-tokenisers, or any Split pattern) and
// SentencePiece-style BPE with byte fallback (Llama 2, Gemma), read from GGUF arrays or from
// tokenizer.json.
//
// Invalid UTF-8: every maximal ill-formed subpart is read as U+FFFD (Unicode's recommended
// practice; what Python's decode(errors="replace") and Rust's from_utf8_lossy do), then encoded
// like any text. Cost: at most n log n on any input. Words are remembered in bounded caches
// (kWordCacheBytes each, at most kWordCachesMax at rest), borrowed by one call at a time.
// Thread safety: const methods from any thread.
// Owner: the process that loaded the checkpoint (a router's front ends, a CLI command); it lends
// the tokenizer by reference.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/model/checkpoint.h"

namespace tandem::model {

namespace tokenizer_internal {
struct TokenizerData;
}  // namespace tokenizer_internal

class Tokenizer {
 public:
  struct EncodeOptions {
    bool add_special_tokens = true;  // BOS and EOS as the checkpoint says
    bool parse_special = true;       // the text of a special token becomes that token
  };

  // Errors: kInvalidArgument for material that is malformed or contradicts itself (a merge of an
  // unknown token, an id out of range), kUnimplemented for a component not supported; both name it.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerSource& source);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // REQUIRES: text is below 2 GiB.
  std::vector<TokenId> Encode(absl::string_view text, EncodeOptions options) const;
  std::vector<TokenId> Encode(absl::string_view text) const {
    return Encode(text, EncodeOptions());
  }

  // The text of all `ids`; bytes that are not UTF-8 become U+FFFD. Ids outside the vocabulary add
  // nothing.
  std::string Decode(absl::Span<const TokenId> ids, bool skip_special_tokens) const;

  // The id of the token spelled `text` in the checkpoint ("<|im_end|>", "Ġthe", "▁the").
  std::optional<TokenId> FindToken(absl::string_view text) const;
  // The bytes a token stands for (" the", one byte of an emoji); empty for an id without a token.
  std::string TokenBytes(TokenId id) const;
  // TokenBytes as text: bytes that are not UTF-8 become U+FFFD. Unlike Decode of one token it keeps
  // a space at the beginning.
  std::string TokenText(TokenId id) const;
  // True for control tokens, which Decode(..., skip_special_tokens=true) leaves out.
  bool IsSpecial(TokenId id) const;

  // One more than the highest id that has a token. The embedding table may have more rows.
  int32_t vocab_size() const;
  std::optional<TokenId> bos_token_id() const;
  std::optional<TokenId> eos_token_id() const;
  std::optional<TokenId> unknown_token_id() const;
  std::optional<TokenId> padding_token_id() const;
  // What add_special_tokens puts before and after the text.
  absl::Span<const TokenId> prefix_ids() const;
  absl::Span<const TokenId> suffix_ids() const;

 private:
  friend class StreamingDetokenizer;
  explicit Tokenizer(std::unique_ptr<tokenizer_internal::TokenizerData> data);

  std::unique_ptr<tokenizer_internal::TokenizerData> data_;
};

}  // namespace tandem::model
