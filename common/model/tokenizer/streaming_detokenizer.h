// Turns tokens into text as they are generated. A piece never ends inside a UTF-8 sequence, and the
// concatenation of all pieces, including that of Flush, is exactly Tokenizer::Decode of all tokens;
// with `continues_text`, exactly what Decode adds for them behind a text.
// Text that a later token could still change is held back: with byte-level BPE at most three bytes;
// with byte fallback the current run of byte tokens, which Hugging Face's decoder turns to text or
// to U+FFFD as a whole.
//
// Thread safety: none; one object per sequence. Owner: the sequence. Borrows the tokenizer, which
// must outlive it.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/model/tokenizer/tokenizer.h"

namespace tandem::model {

class StreamingDetokenizer {
 public:
  struct Options {
    bool skip_special_tokens = true;
    // The tokens follow other text, so a space at their beginning is a part of theirs. Otherwise
    // they begin a text, which SentencePiece's decoders rid of its first space.
    bool continues_text = false;
  };
  // `tokenizer` must outlive this.
  StreamingDetokenizer(const Tokenizer* tokenizer, Options options);
  explicit StreamingDetokenizer(const Tokenizer* tokenizer)
      : StreamingDetokenizer(tokenizer, Options()) {}

  // Takes the next token; returns the text that became certain, which may be empty. An id outside
  // the vocabulary adds nothing.
  std::string Append(TokenId id);
  // Like Append, adding to `*out`.
  void AppendTo(TokenId id, std::string* out);
  // Ends the text: returns what was held back (an unfinished sequence becomes U+FFFD) and starts
  // over.
  std::string Flush();

 private:
  void Restart();
  void AppendBytes(absl::string_view bytes, std::string* out);
  void AppendText(absl::string_view text, std::string* out);
  void EndByteRun(std::string* out);

  const tokenizer_internal::TokenizerData* data_;
  Options options_;
  std::string pending_;           // an unfinished UTF-8 sequence, or the run of byte tokens
  bool first_token_ = true;       // no token has been kept yet
  int strip_left_remaining_ = 0;  // leading characters still to be dropped
};

}  // namespace tandem::model
