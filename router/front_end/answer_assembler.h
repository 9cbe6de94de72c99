// Turns one answer's tokens into the text that its client sees: whole UTF-8 pieces, ended by stop
// strings found across token borders. Text that may be the beginning of a stop string is held back
// until it is known not to be.
//
// Which stop string wins: the one that is complete first, as if the text came one byte at a time;
// of several complete at the same byte the longest, since it removes the most. So the result
// depends on the text, never on how it was cut into tokens (vLLM's looks for strings in the order
// given among what the last token completed, which does depend on it). With min_tokens, a string
// completed by an earlier token does not count.
//
// Thread safety: none; an AnswerGroup owns one for each answer. No lock, no I/O.
// Invariants: the deltas joined are a prefix of the detokenised answer; nothing follows finished().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/base/ids.h"
#include "common/request/sampling_params.h"

namespace tandem::router {

// Tokens to text, incrementally. Which special tokens have text is the implementation's option.
class Detokenizer {
 public:
  virtual ~Detokenizer() = default;
  // The text that this token makes certain: whole UTF-8 sequences, maybe none.
  virtual std::string Append(TokenId token) = 0;
  // The text still held back; an unfinished sequence becomes U+FFFD.
  virtual std::string Flush() = 0;
};

class AnswerAssembler {
 public:
  // Stop strings are not empty (request::Validate).
  AnswerAssembler(std::unique_ptr<Detokenizer> detokenizer, request::StopParams stop,
                  std::vector<TokenId> eos_token_ids);

  // The text that `token` makes certain. A token that ends the answer by its id has no text; one
  // that ends it by length has. Tokens after finished() are ignored: they may have been on their
  // way.
  std::string Append(TokenId token);
  // The answer has ended (by token, length or abort): the text still held back. Idempotent; may
  // find a last stop string.
  std::string Flush();

  // A stop string was found: the router ends the sequence (RouterCore::FinishSequence, kStop).
  bool stopped() const { return stop_string_ >= 0; }
  // The one found; empty unless stopped().
  absl::string_view stop_string() const;
  // No text will follow.
  bool finished() const { return stopped() || flushed_; }

 private:
  // A stop string and how much of it the text ends with (Knuth, Morris and Pratt, 1977).
  struct Matcher {
    std::string text;
    std::vector<int32_t> fallback;  // [i]: longest proper prefix that ends text[0..i]
    int32_t matched = 0;
  };

  void Advance(Matcher& matcher, char byte) const;
  std::string Take(absl::string_view text);

  const std::unique_ptr<Detokenizer> detokenizer_;
  const request::StopParams stop_;
  const std::vector<TokenId> eos_token_ids_;
  // Bound: one for each stop string, 64.
  std::vector<Matcher> matchers_;  // as stop_.stop
  std::string held_;               // not yet given out
  int64_t tokens_ = 0;
  int stop_string_ = -1;
  bool flushed_ = false;
};

}  // namespace tandem::router
