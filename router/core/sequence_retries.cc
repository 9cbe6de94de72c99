// The part of SequenceMachine (router/core/sequence_machine.h) that tries again: another prefill
// leg for the same lease, or another placement.
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/telemetry/log.h"
#include "router/core/sequence_machine.h"

namespace tandem::router {

bool SequenceMachine::CountAttempt(const absl::Status& why) {
  if (attempts_ < context_.options.attempts_max) {
    ++attempts_;
    return true;
  }
  Fail(absl::UnavailableError(absl::StrCat("the router gave up after ", attempts_,
                                           " attempts; the last one failed: ", why.message())));
  return false;
}

void SequenceMachine::GiveUpDecode(const absl::Status& why, absl::Time now) {
  legs_.Avoid(legs_.decode().node(), now + kFailureMemory);
  Replace(why, now);
}

void SequenceMachine::OnLeaseInDoubt(const absl::Status& why, absl::Time now) {
  const DecodeLeg& decode = legs_.decode();
  // The decode node computes the rest after what an earlier sender brought.
  const bool goes_on =
      decode.computes_locally() && !decode.installed() && decode.received_tokens() > 0;
  if (AwaitsPrefill() || AwaitsNewEpoch() || goes_on) Replace(why, now);
}

void SequenceMachine::RetryPrefill(const absl::Status& why, absl::Time now) {
  // A draining node leaves as soon as its last export is acknowledged, often before the receiver's
  // Installed arrives here. That is no failure, so it costs no attempt and no retry.
  const bool retained = legs_.prefill().retained();
  if (answer_.complete() || (!retained && !context_.retries.HasRoom(now))) return Replace(why, now);
  LogRetry("retrying the prefill leg", legs_.prefill().node_id(), why);
  legs_.Avoid(legs_.prefill().node(), now + kFailureMemory);
  legs_.prefill().Abort("replaced");
  if (!retained) {
    if (!CountAttempt(why)) return;
    context_.retries.Take(/*retry=*/1, now);
  }
  legs_.BeginNewEpoch(WishAt(now));
  answer_.steps().OnSenderReplaced();
  Enter(State::kReserving, now + context_.options.reserve_deadline);
}

void SequenceMachine::Replace(const absl::Status& why, absl::Time now) {
  // The answer is complete, and the sequence only waited until its prompt's KV lay on the decode
  // node for the sequences beside it. There is nothing left to place.
  if (answer_.complete()) {
    answer_.End(answer_.finish());
    legs_.Abort("the answer is complete");
    return;
  }
  LogRetry("placing the sequence again", legs_.decode().node_id(), why);
  const Node* node = context_.fleet.Find(legs_.decode().node());
  const bool drains = node != nullptr && node->draining;
  legs_.prefill().Abort("the decode leg is gone");
  legs_.decode().Abort("replaced");
  legs_.decode().ForgetInstalled();
  if (!drains && !CountAttempt(why)) return;
  not_before_ = now + context_.retries.Take(attempts_ - 1, now);
  state_ = State::kQueued;
  queued_since_ = now;
}

void SequenceMachine::LogRetry(absl::string_view what, const std::string& node,
                               const absl::Status& why) const {
  Log(LogLevel::kWarning, what,
      {{"request_id", input_.id.value()},
       {input_.trace_id.empty() ? "" : "trace_id", input_.trace_id},
       {"node_id", node},
       {"attempt", attempts_},
       {"delivered_tokens", answer_.delivered().size()},
       {"why", why.message()}});
}

// A full node is no failure, so it costs no attempt. Another one is asked, and if that is full as
// well, the decode node computes the prompt.
void SequenceMachine::OnPrefillRefused(const absl::Status& why, absl::Time now) {
  const bool full = absl::IsResourceExhausted(why) && !legs_.prefill().retained();
  if (!full || answer_.complete()) return OnPrefillFailed(why, now);
  if (!legs_.prefill().live() || !AwaitsPrefill()) return;
  LogRetry("a prefill node is full", legs_.prefill().node_id(), why);
  legs_.Avoid(legs_.prefill().node(), now + kFailureMemory);
  legs_.prefill().Forget();
  legs_.BeginNewEpoch(WishAt(now), /*may_send=*/legs_.prefill().tries() < 2);
  answer_.steps().OnSenderReplaced();
  Enter(State::kReserving, now + context_.options.reserve_deadline);
}

}  // namespace tandem::router
