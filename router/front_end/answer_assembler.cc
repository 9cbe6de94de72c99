#include "router/front_end/answer_assembler.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

AnswerAssembler::AnswerAssembler(std::unique_ptr<Detokenizer> detokenizer, request::StopParams stop,
                                 std::vector<TokenId> eos_token_ids)
    : detokenizer_(std::move(detokenizer)),
      stop_(std::move(stop)),
      eos_token_ids_(std::move(eos_token_ids)) {
  for (const std::string& text : stop_.stop) {
    Matcher matcher;
    matcher.text = text;
    matcher.fallback.assign(text.size(), 0);
    for (size_t i = 1; i < text.size(); ++i) {
      int32_t length = matcher.fallback[i - 1];
      while (length > 0 && text[length] != text[i]) length = matcher.fallback[length - 1];
      matcher.fallback[i] = text[length] == text[i] ? length + 1 : 0;
    }
    matchers_.push_back(std::move(matcher));
  }
}

absl::string_view AnswerAssembler::stop_string() const {
  return stopped() ? absl::string_view(stop_.stop[stop_string_]) : absl::string_view();
}

std::string AnswerAssembler::Append(TokenId token) {
  if (finished()) return "";
  ++tokens_;
  if (request::CheckStop(stop_, eos_token_ids_, token, tokens_) == request::FinishReason::kStop)
    return Flush();
  return Take(detokenizer_->Append(token));
}

std::string AnswerAssembler::Flush() {
  if (finished()) return "";
  std::string text = Take(detokenizer_->Flush());
  flushed_ = true;
  if (!stopped()) text += std::exchange(held_, "");
  return text;
}

void AnswerAssembler::Advance(Matcher& matcher, char byte) const {
  if (matcher.matched == static_cast<int32_t>(matcher.text.size()))  // one that did not count
    matcher.matched = matcher.fallback.back();
  while (matcher.matched > 0 && matcher.text[matcher.matched] != byte)
    matcher.matched = matcher.fallback[matcher.matched - 1];
  if (matcher.text[matcher.matched] == byte) ++matcher.matched;
}

std::string AnswerAssembler::Take(absl::string_view text) {
  const bool counts = tokens_ >= stop_.min_tokens;
  for (const char byte : text) {
    held_.push_back(byte);
    size_t longest = 0;
    for (size_t i = 0; i < matchers_.size(); ++i) {
      Matcher& matcher = matchers_[i];
      Advance(matcher, byte);
      const size_t size = matcher.text.size();
      if (!counts || matcher.matched != static_cast<int32_t>(size) || size <= longest) continue;
      longest = size;
      stop_string_ = static_cast<int>(i);
    }
    if (!stopped()) continue;
    if (!stop_.include_stop_str_in_output) held_.resize(held_.size() - longest);
    return std::exchange(held_, "");
  }
  // The end of a stop string that did not count may be the beginning of the next match.
  size_t kept = 0;
  for (const Matcher& matcher : matchers_) {
    const bool whole = matcher.matched == static_cast<int32_t>(matcher.text.size());
    kept = std::max<size_t>(kept, whole ? matcher.fallback.back() : matcher.matched);
  }
  std::string given = held_.substr(0, held_.size() - kept);
  held_.erase(0, given.size());
  return given;
}

}  // namespace tandem::router
