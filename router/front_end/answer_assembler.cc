#include "router/front_end/answer_assembler.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

StopRules::StopRules(request::StopParams params, std::vector<TokenId> eos_token_ids)
    : params_(std::move(params)), eos_token_ids_(std::move(eos_token_ids)) {
  for (const std::string& text : params_.stop) {
    std::vector<int32_t>& fallback = fallbacks_.emplace_back(text.size(), 0);
    for (size_t i = 1; i < text.size(); ++i) {
      int32_t length = fallback[i - 1];
      while (length > 0 && text[length] != text[i]) length = fallback[length - 1];
      fallback[i] = text[length] == text[i] ? length + 1 : 0;
    }
  }
}

int32_t StopRules::Advance(size_t i, int32_t matched, char byte) const {
  const std::string& text = params_.stop[i];
  const std::vector<int32_t>& fallback = fallbacks_[i];
  if (matched == static_cast<int32_t>(text.size())) matched = fallback.back();  // did not count
  while (matched > 0 && text[matched] != byte) matched = fallback[matched - 1];
  return text[matched] == byte ? matched + 1 : 0;
}

AnswerAssembler::AnswerAssembler(std::unique_ptr<Detokenizer> detokenizer,
                                 SharedValue<StopRules> rules)
    : detokenizer_(std::move(detokenizer)),
      rules_(std::move(rules)),
      matched_(rules_->texts().size(), 0) {}

absl::string_view AnswerAssembler::stop_string() const {
  return stopped() ? absl::string_view(rules_->texts()[stop_string_]) : absl::string_view();
}

std::string AnswerAssembler::Append(TokenId token) {
  if (finished()) return "";
  ++tokens_;
  if (request::CheckStop(rules_->params(), rules_->eos_token_ids(), token, tokens_) ==
      request::FinishReason::kStop)
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

std::string AnswerAssembler::Take(absl::string_view text) {
  const bool counts = tokens_ >= rules_->params().min_tokens;
  const absl::Span<const std::string> stops = rules_->texts();
  for (const char byte : text) {
    held_.push_back(byte);
    size_t longest = 0;
    for (size_t i = 0; i < stops.size(); ++i) {
      matched_[i] = rules_->Advance(i, matched_[i], byte);
      const size_t size = stops[i].size();
      if (!counts || matched_[i] != static_cast<int32_t>(size) || size <= longest) continue;
      longest = size;
      stop_string_ = static_cast<int>(i);
    }
    if (!stopped()) continue;
    if (!rules_->params().include_stop_str_in_output) held_.resize(held_.size() - longest);
    return std::exchange(held_, "");
  }
  // The end of a stop string that did not count may be the beginning of the next match.
  size_t kept = 0;
  for (size_t i = 0; i < stops.size(); ++i) {
    const bool whole = matched_[i] == static_cast<int32_t>(stops[i].size());
    kept = std::max(kept, static_cast<size_t>(whole ? rules_->Overlap(i) : matched_[i]));
  }
  std::string given = held_.substr(0, held_.size() - kept);
  held_.erase(0, given.size());
  return given;
}

}  // namespace tandem::router
