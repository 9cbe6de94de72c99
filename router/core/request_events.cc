// What nodes' events do to a request: the transitions of request_machine.h's diagram.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rpc/convert.h"
#include "common/telemetry/log.h"
#include "router/core/request_machine.h"

namespace tandem::router {
namespace {

// A full node is asked again after 20 ms, then after twice as long each time, up to a second.
constexpr absl::Duration kRefusalBackoffMin = absl::Milliseconds(20);
constexpr absl::Duration kRefusalBackoffMax = absl::Seconds(1);

absl::Duration RefusalBackoff(int refusals) {
  return std::min(kRefusalBackoffMin * (1 << std::min(refusals, 6)), kRefusalBackoffMax);
}

// A node's word for what went wrong; never OK.
absl::Status FailureOf(const v1::StatusProto& wire) {
  const absl::Status status = rpc::FromWire(wire);
  return status.ok() ? absl::UnknownError("the node gave no reason") : status;
}

}  // namespace

bool RequestMachine::IsDecode(NodeKey node, const v1::Leg& leg) const {
  return decode_.live && decode_.node == node && leg.attempt() == decode_.attempt;
}

bool RequestMachine::IsPrefill(NodeKey node, const v1::Leg& leg) const {
  return prefill_.attempt != 0 && prefill_.node == node && leg.attempt() == prefill_.attempt;
}

// Numbers rise from a placement's decode leg to its prefill legs, one after the other.
bool RequestMachine::IsEarlierSender(const v1::Leg& leg) const {
  return decode_.live && leg.attempt() > decode_.attempt && leg.attempt() <= last_attempt_ &&
         leg.attempt() != prefill_.attempt;
}

void RequestMachine::OnEvent(NodeKey node, const v1::NodeEvent& event, absl::Time now) {
  if (done()) return;
  switch (event.event_case()) {
    case v1::NodeEvent::kReserved:
      if (IsDecode(node, event.reserved().leg())) OnReserved(event.reserved(), now);
      break;
    case v1::NodeEvent::kRefused: {
      const v1::Refused& refused = event.refused();
      if (IsDecode(node, refused.leg()))
        OnDecodeRefused(refused, now);
      else if (IsPrefill(node, refused.leg()))
        OnPrefillFailed(FailureOf(refused.status()), now);
      break;
    }
    case v1::NodeEvent::kPrefillFinished:
      if (IsPrefill(node, event.prefill_finished().leg()) && !prefill_.finished) {
        prefill_.finished = true;
        ReleasePrefillTokens();
        report_.OnPrefillFinished(event.prefill_finished().tokens());
      }
      break;
    case v1::NodeEvent::kPromptScored:
      if (const v1::Leg& leg = event.prompt_scored().leg();
          IsDecode(node, leg) || IsPrefill(node, leg))
        OnPromptScored(event.prompt_scored());
      break;
    case v1::NodeEvent::kInstalled:
      if (IsDecode(node, event.installed().leg())) OnInstalled(event.installed(), now);
      break;
    case v1::NodeEvent::kLegFinished:
      if (IsDecode(node, event.leg_finished().leg())) OnLegFinished(event.leg_finished(), now);
      break;
    case v1::NodeEvent::kLegFailed: {
      const v1::LegFailed& failed = event.leg_failed();
      if (IsDecode(node, failed.leg()))
        OnDecodeFailed(failed, now);
      else if (IsPrefill(node, failed.leg()))
        OnPrefillLegFailed(failed, now);
      else if (IsEarlierSender(failed.leg()) && !failed.sender_side())
        OnLeaseInDoubt(FailureOf(failed.status()), now);
      break;
    }
    default:
      break;
  }
}

void RequestMachine::OnReserved(const v1::Reserved& reserved, absl::Time now) {
  if (state_ != State::kReserving) return;
  if (AwaitsNewEpoch()) {
    if (reserved.epoch() != decode_.epoch) return;
  } else {
    context_.fleet.DecodeReserved(decode_.node, decode_.blocks);
  }
  decode_.reserved = true;
  decode_.lease = reserved.lease_id();
  decode_.epoch = reserved.epoch();
  decode_.computes_locally = reserved.computes_locally();
  decode_.cached_tokens =
      std::clamp<int64_t>(reserved.cached_tokens(), 0, static_cast<int64_t>(sequence_.size()));
  decode_.received_tokens =
      std::clamp<int64_t>(reserved.received_tokens(), 0,
                          static_cast<int64_t>(sequence_.size()) - decode_.cached_tokens);
  report_.OnReserved(static_cast<int64_t>(sequence_.size()), decode_.cached_tokens);
  steps_.OnReserved(now);
  refusals_ = 0;
  if (decode_.computes_locally) {
    EndPrefillLeg("");
    state_ = State::kGenerating;
    state_deadline_ = now + context_.options.prefill_deadline;
    return;
  }
  if (!StartPrefill(now))
    Replace(absl::UnavailableError("no prefill node takes the prompt any more"), now);
}

void RequestMachine::OnDecodeRefused(const v1::Refused& refused, absl::Time now) {
  if (state_ != State::kReserving) return;
  const absl::Status why = FailureOf(refused.status());
  EndPrefillLeg("");
  EndDecodeLeg("");
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    Fail(why);
    return;
  }
  const bool full = why.code() == absl::StatusCode::kResourceExhausted;
  MarkFailed(decode_.node, now + (full ? RefusalBackoff(refusals_++) : kFailureMemory));
  if (!full && !CountAttempt(why)) return;
  state_ = State::kQueued;  // queued_since_ stays: refusals cannot go on for ever
}

// A part that is known already comes from a retried leg, and is the same.
void RequestMachine::OnPromptScored(const v1::PromptScored& scored) {
  if (!prompt_scores_.has_value()) return;
  int64_t index = scored.first_index();
  for (const v1::GeneratedToken& token : scored.tokens()) {
    if (index++ != static_cast<int64_t>(prompt_scores_->size()) + 1 || scores_complete()) continue;
    prompt_scores_->push_back(token);
    prompt_scores_->back().set_index(0);
  }
}

void RequestMachine::OnInstalled(const v1::Installed& installed, absl::Time now) {
  if (!decode_.reserved || decode_.installed) return;
  decode_.installed = true;
  report_.OnInstalled(installed);
  steps_.OnInstalled(now);
  if (decode_.moved) CountMove(installed);
  if (Node* node = context_.fleet.Find(decode_.node); node && !installed.transport().empty())
    node->transport = installed.transport();
  if (Node* node = context_.fleet.Find(prefill_.node);
      node && prefill_.live && !installed.transport().empty())
    node->transport = installed.transport();
  if (prefill_.live && !installed.transport().empty()) {
    context_.fleet.HandedOff(prefill_.node, decode_.node, installed);
  }
  // An earlier sender may have won after all; the last one is then computing for nobody. A single
  // sender has ended: its blocks are acknowledged, and its PrefillFinished is sent or on its way.
  EndPrefillLeg(prefill_.tries > 1 && !prefill_.finished ? "another sender filled the lease" : "");
  // An earlier sender's last part may have arrived before NewEpoch did.
  if (AwaitsPrefill() || AwaitsNewEpoch()) {
    state_ = State::kGenerating;
    state_deadline_ = now + context_.options.token_deadline;
  }
  if (!installed.has_first_token()) return;
  // Not counted as a duplicate: the KV transfer carries the token that the prefill node announced.
  if (const absl::Status status = Offer(installed.first_token(), false, now); !status.ok()) {
    GiveUpDecode(status, now);
    return;
  }
  CheckEnd(false);
}

void RequestMachine::OnTokens(NodeKey node, const v1::TokensGenerated::Step& step, absl::Time now) {
  if (done()) return;
  if (IsDecode(node, step.leg())) {
    if (!decode_.reserved) return;
    for (const v1::GeneratedToken& token : step.tokens())
      if (const absl::Status status = Offer(token, true, now); !status.ok()) {
        GiveUpDecode(status, now);
        return;
      }
    if (!step.tokens().empty() && state_ == State::kGenerating)
      state_deadline_ = now + context_.options.token_deadline;
    CheckEnd(true);
    return;
  }
  if (!IsPrefill(node, step.leg()) || !prefill_.live || !AwaitsPrefill()) return;
  for (const v1::GeneratedToken& token : step.tokens()) {
    const absl::Status status =
        token.index() == base_
            ? Offer(token, true, now)
            : absl::DataLossError(absl::StrCat("prefill node ", prefill_.node_id, " sent token ",
                                               token.index(), ", expected ", base_));
    if (!status.ok()) {
      OnPrefillFailed(status, now);
      return;
    }
    if (state_ == State::kPrefilling) state_ = State::kInstalling;
  }
  CheckEnd(false);
}

absl::Status RequestMachine::Offer(const v1::GeneratedToken& token, bool count_duplicate,
                                   absl::Time now) {
  const absl::StatusOr<TokenStream::Outcome> outcome = tokens_.Offer(token);
  if (!outcome.ok()) return outcome.status();
  if (outcome->delivered > 0) {
    steps_.OnToken(now);
    if (numerics_id_.empty()) numerics_id_ = context_.fleet.numerics_id();
  }
  if (outcome->duplicate && count_duplicate) ++context_.counters.duplicate_tokens;
  if (outcome->diverged) {
    ++context_.counters.diverged_tokens;
    Log(LogLevel::kError, "a leg disagrees with a delivered token",
        {{"request_id", input_.id.value()},
         {input_.trace_id.empty() ? "" : "trace_id", input_.trace_id},
         {"decode_node", decode_.node_id},
         {"prefill_node", prefill_.node_id},
         {"index", token.index()},
         {"delivered", tokens_.delivered()[token.index()]},
         {"got", token.token_id()}});
  }
  return absl::OkStatus();
}

void RequestMachine::GiveUpDecode(const absl::Status& why, absl::Time now) {
  MarkFailed(decode_.node, now + kFailureMemory);
  Replace(why, now);
}

void RequestMachine::CheckEnd(bool decode_leg_ends_itself) {
  if (tokens_.finish() == request::FinishReason::kNone || ending_ != request::FinishReason::kNone)
    return;
  if (input_.installs_prompt && !decode_.installed) return;
  ending_ = tokens_.finish();
  EndPrefillLeg("the answer is complete");
  EndDecodeLeg(decode_leg_ends_itself ? "" : "the answer is complete");
}

void RequestMachine::OnLegFinished(const v1::LegFinished& finished, absl::Time now) {
  const request::FinishReason reason = rpc::FromWire(finished.reason());
  const auto delivered = static_cast<int32_t>(tokens_.delivered().size());
  if (reason != request::FinishReason::kStop && reason != request::FinishReason::kLength) {
    GiveUpDecode(
        absl::UnavailableError(absl::StrCat("decode node ", decode_.node_id, " gave the leg up")),
        now);
    return;
  }
  if (delivered == base_ || finished.output_tokens() > delivered || tokens_.waiting() > 0) {
    GiveUpDecode(absl::DataLossError(absl::StrCat("decode node ", decode_.node_id, " ended after ",
                                                  finished.output_tokens(), " tokens, ", delivered,
                                                  " arrived")),
                 now);
    return;
  }
  ending_ = reason;
  EndPrefillLeg("the answer is complete");
  EndDecodeLeg("");
}

void RequestMachine::OnDecodeFailed(const v1::LegFailed& failed, absl::Time now) {
  const absl::Status why = FailureOf(failed.status());
  if (failed.sender_side() && decode_.reserved && !decode_.computes_locally) {
    if (!AwaitsPrefill()) return;
    if (failed.epoch() != 0 && failed.epoch() != decode_.epoch) return;
    context_.fleet.KvTransferFailed(prefill_.node, decode_.node, now);
    return RetryPrefill(why, now);
  }
  EndDecodeLeg("");
  if (failed.request_at_fault()) {
    EndPrefillLeg("the request cannot be gone on with");
    return Fail(why);
  }
  if (failed.retained()) retained_ = Retained{decode_.node, decode_.attempt};
  GiveUpDecode(why, now);
}

void RequestMachine::OnPrefillLegFailed(const v1::LegFailed& failed, absl::Time now) {
  const absl::Status why = FailureOf(failed.status());
  if (failed.sender_side()) {
    if (prefill_.live && AwaitsPrefill())
      context_.fleet.KvTransferFailed(prefill_.node, decode_.node, now);
    return OnPrefillFailed(why, now);
  }
  if (!prefill_.live || !AwaitsPrefill()) return;
  MarkFailed(prefill_.node, now + kFailureMemory);
  OnLeaseInDoubt(why, now);
}

// A step that computed blocks of the lease failed: what the receiver holds, verified or not, is not
// to be trusted.
void RequestMachine::OnLeaseInDoubt(const absl::Status& why, absl::Time now) {
  if (AwaitsPrefill() || AwaitsNewEpoch()) Replace(why, now);
}

void RequestMachine::OnPrefillFailed(const absl::Status& why, absl::Time now) {
  if (!prefill_.live || !AwaitsPrefill()) return;
  RetryPrefill(why, now);
}

void RequestMachine::OnNodeLost(NodeKey node, const absl::Status& why, absl::Time now) {
  if (done()) return;
  if (retained_.has_value() && retained_->node == node) retained_.reset();
  if (decode_.live && decode_.node == node) {
    Replace(why, now);
  } else if (prefill_.node == node && prefill_.live && AwaitsPrefill()) {
    RetryPrefill(why, now);
  } else if (prefill_.node == node && prefill_.attempt != 0 && AwaitsScores()) {
    // The prompt's KV has arrived, its scores were still to come.
    if (ending_ == request::FinishReason::kNone)
      Replace(why, now);
    else
      Fail(why);
  }
}

}  // namespace tandem::router
