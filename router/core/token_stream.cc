#include "router/core/token_stream.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/mutation.h"

namespace tandem::router {

absl::StatusOr<TokenStream::Outcome> TokenStream::Offer(const v1::GeneratedToken& token) {
  Outcome outcome;
  if (finish_ != request::FinishReason::kNone) return outcome;
  if (token.token_id() < 0 || token.token_id() >= vocab_size_ || token.index() < 0)
    return absl::DataLossError(absl::StrCat("token ", token.token_id(), " at index ", token.index(),
                                            ", expected an id below ", vocab_size_,
                                            " and an index from 0"));
  for (const v1::TokenLogprob& top : token.top_logprobs()) {
    // A token that a constraint forbids has negative infinity.
    const bool is_logprob = top.logprob() < std::numeric_limits<float>::infinity();
    if (top.token_id() < 0 || top.token_id() >= vocab_size_ || !is_logprob)
      return absl::DataLossError(absl::StrCat(
          "likeliest token ", top.token_id(), " at index ", token.index(), " with log-probability ",
          top.logprob(), ", expected an id below ", vocab_size_, " and a number"));
  }
  const auto next = static_cast<int32_t>(delivered_.size());
  if (token.index() < next) {
    outcome.duplicate = true;
    outcome.diverged = delivered_[token.index()] != token.token_id();
    if (TANDEM_MUTATED(kDoubleDelivery)) ready_.push_back(token);
    return outcome;
  }
  if (token.index() > next) {
    if (waiting_.size() >= kWaitingMax)
      return absl::DataLossError(absl::StrCat("token ", next, " is missing and ", waiting_.size(),
                                              " later tokens wait for it, the limit"));
    waiting_.emplace(token.index(), token);
    return outcome;
  }
  Deliver(token);
  while (finish_ == request::FinishReason::kNone && !waiting_.empty() &&
         waiting_.begin()->first == static_cast<int32_t>(delivered_.size())) {
    Deliver(waiting_.begin()->second);
    waiting_.erase(waiting_.begin());
  }
  outcome.delivered = static_cast<int32_t>(delivered_.size()) - next;
  return outcome;
}

void TokenStream::Deliver(const v1::GeneratedToken& token) {
  delivered_.push_back(token.token_id());
  ready_.push_back(token);
  finish_ = request::CheckStop(*stop_, eos_token_ids_, token.token_id(),
                               static_cast<int64_t>(delivered_.size()));
}

std::vector<v1::GeneratedToken> TokenStream::TakeReady() { return std::exchange(ready_, {}); }

}  // namespace tandem::router
