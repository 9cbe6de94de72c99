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
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/base/shared_value.h"
#include "common/request/sampling_params.h"
#include "router/front_end/stop_matcher.h"

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

// What ends a request's answers. Immutable; all its answers share one.
class StopRules {
 public:
  StopRules() = default;
  // Stop strings are not empty (request::Validate).
  StopRules(request::StopParams params, std::vector<TokenId> eos_token_ids);

  const request::StopParams& params() const { return params_; }
  const std::vector<TokenId>& eos_token_ids() const { return eos_token_ids_; }
  // Whether the model's own end of an answer, `token` being one, ends the request's.
  bool EndsByItself(TokenId token) const;
  absl::Span<const std::string> texts() const { return params_.stop; }
  const StopMatcher& matcher() const { return matcher_; }

 private:
  request::StopParams params_;
  // Bound: the model's.
  std::vector<TokenId> eos_token_ids_;
  StopMatcher matcher_;
};

class AnswerAssembler {
 public:
  AnswerAssembler(std::unique_ptr<Detokenizer> detokenizer, SharedValue<StopRules> rules);

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
  // The token of the request's stop_token_ids that ended the answer, unless the model ends its
  // answers with it anyway.
  std::optional<TokenId> stop_token() const { return stop_token_; }
  // No text will follow.
  bool finished() const { return stopped() || flushed_; }
  // The steps that looking for stop strings has taken: at most two for each byte of the text.
  int64_t match_steps() const { return match_steps_; }

 private:
  std::string Take(absl::string_view text);

  const std::unique_ptr<Detokenizer> detokenizer_;
  const SharedValue<StopRules> rules_;
  StopMatcher::State matched_ = StopMatcher::kStart;
  int64_t match_steps_ = 0;
  std::string held_;  // not yet given out. Bound: the longest stop string, 1,024 bytes
  int64_t tokens_ = 0;
  int stop_string_ = -1;
  std::optional<TokenId> stop_token_;
  bool flushed_ = false;
};

}  // namespace tandem::router
