#include "router/front_end/answer_assembler.h"

#include <utility>

#include "absl/algorithm/container.h"

namespace tandem::router {

StopRules::StopRules(request::StopParams params, std::vector<TokenId> eos_token_ids)
    : params_(std::move(params)),
      eos_token_ids_(std::move(eos_token_ids)),
      matcher_(params_.stop) {}

bool StopRules::EndsByItself(TokenId token) const {
  return !params_.ignore_eos && absl::c_linear_search(eos_token_ids_, token);
}

AnswerAssembler::AnswerAssembler(std::unique_ptr<Detokenizer> detokenizer,
                                 SharedValue<StopRules> rules)
    : detokenizer_(std::move(detokenizer)), rules_(std::move(rules)) {}

absl::string_view AnswerAssembler::stop_string() const {
  return stopped() ? absl::string_view(rules_->texts()[stop_string_]) : absl::string_view();
}

std::string AnswerAssembler::Append(TokenId token) {
  if (finished()) return "";
  ++tokens_;
  if (request::CheckStop(rules_->params(), rules_->eos_token_ids(), token, tokens_) ==
      request::FinishReason::kStop) {
    std::string text = Flush();
    if (!stopped() && !rules_->EndsByItself(token)) stop_token_ = token;
    return text;
  }
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
  const StopMatcher& matcher = rules_->matcher();
  for (const char byte : text) {
    held_.push_back(byte);
    matched_ = matcher.Advance(matched_, byte, match_steps_);
    if (counts) stop_string_ = matcher.Longest(matched_);
    if (!stopped()) continue;
    if (!rules_->params().include_stop_str_in_output)
      held_.resize(held_.size() - stop_string().size());
    return std::exchange(held_, "");
  }
  // The end of a stop string that did not count may be the beginning of the next match.
  const auto kept = static_cast<size_t>(matcher.Pending(matched_));
  std::string given = held_.substr(0, held_.size() - kept);
  held_.erase(0, given.size());
  return given;
}

}  // namespace tandem::router
