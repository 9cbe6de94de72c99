// Writes log-probabilities in the two forms of OpenAI's API.
// Thread safety: CompletionLogprobs: none, its format owns it. The rest: pure functions.
#pragma once

#include <string>

#include "common/model/tokenizer/streaming_detokenizer.h"
#include "common/model/tokenizer/tokenizer.h"
#include "router/front_end/json_body.h"
#include "tandem/v1/common.pb.h"

namespace tandem::router {

struct LogprobsStyle {
  const model::Tokenizer& tokenizer;
  bool tokens_as_ids = false;  // "token_id:17" instead of the token's text
};

// Chat: {"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}…]}.
Json ChatLogprob(const LogprobsStyle& style, const v1::GeneratedToken& token, int32_t top);

// Completions: {"text_offset": […], "token_logprobs": […], "tokens": […], "top_logprobs": [{…}…]},
// one element for each token. Offsets count characters from the beginning of the choice's text. A
// token that begins inside a character has that character's offset, and a special token that the
// text leaves out the offset of what follows.
class CompletionLogprobs {
 public:
  using TextOptions = model::StreamingDetokenizer::Options;
  // `text`: how the choice's tokens become its text.
  CompletionLogprobs(const LogprobsStyle& style, int32_t top, const TextOptions& text)
      : style_(style), top_(top), text_options_(text), text_(&style.tokenizer, text) {}

  // The first token of a prompt has no probability.
  void AddFirst(int32_t token_id);
  void Add(const v1::GeneratedToken& token);
  // The tokens added since the last Take.
  size_t size() const { return tokens_.size(); }
  // The object for these tokens, without the first `skipped` of them. REQUIRES: skipped <= size().
  Json Take(size_t skipped = 0);

 private:
  void AddText(int32_t token_id);

  const LogprobsStyle style_;
  const int32_t top_;
  const TextOptions text_options_;
  model::StreamingDetokenizer text_;
  int64_t offset_ = 0;  // characters that are certain
  int64_t held_ = 0;    // characters begun behind them, by tokens whose text is held back
  Json offsets_ = Json::array(), logprobs_ = Json::array(), tokens_ = Json::array(),
       tops_ = Json::array();
};

// vLLM's prompt_logprobs: a list with null, then {"17": {"logprob", "rank", "decoded_token"}…} for
// each further token of the prompt. Appends to `list`, which is null before the first of them.
void AddPromptLogprobs(const LogprobsStyle& style,
                       const google::protobuf::RepeatedPtrField<v1::GeneratedToken>& tokens,
                       Json& list);

}  // namespace tandem::router
