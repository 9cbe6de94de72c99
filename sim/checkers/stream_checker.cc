#include "sim/checkers/stream_checker.h"

namespace tandem::sim {

void StreamChecker::OnToken(int32_t index, TokenId token) {
  if (ended_) return Violate(absl::StrCat("token ", index, " after the end"));
  if (index != next_)
    return Violate(absl::StrCat("received token ", index, ", expected token ", next_));
  if (index >= static_cast<int32_t>(oracle_.tokens.size()))
    return Violate(absl::StrCat("token ", index, " of an answer of ", oracle_.tokens.size()));
  if (token != oracle_.tokens[index])
    Violate(absl::StrCat("token ", index, " is ", token, ", the oracle's ", oracle_.tokens[index]));
  ++next_;
}

void StreamChecker::OnDone(request::FinishReason reason, int32_t output_tokens_reported,
                           bool given_up) {
  if (given_up && reason == request::FinishReason::kAborted) return;
  if (ended_) return Violate("ended twice");
  ended_ = true;
  if (output_tokens_reported != next_)
    Violate(absl::StrCat("usage counts ", output_tokens_reported, " tokens, the client received ",
                         next_));
  if (reason == request::FinishReason::kAborted)
    return Violate(absl::StrCat("aborted after ", next_, " tokens, and its client waits for it"));
  if (next_ != static_cast<int32_t>(oracle_.tokens.size()) || reason != oracle_.reason)
    Violate(absl::StrCat("ended after ", next_, " tokens for reason ", static_cast<int>(reason),
                         ", the oracle after ", oracle_.tokens.size(), " for ",
                         static_cast<int>(oracle_.reason)));
}

void StreamChecker::OnFailed(const absl::Status& status) {
  ended_ = true;
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kDeadlineExceeded:
      return;
    default:
      Violate(absl::StrCat("failed for good: ", status.ToString()));
  }
}

}  // namespace tandem::sim
