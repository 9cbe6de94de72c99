#include "router/core/sequence_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rpc/convert.h"
#include "common/telemetry/log.h"
#include "router/core/queue_deadline_status.h"

namespace tandem::router {
namespace {

// A full node is asked again after 20 ms, then after twice as long each time, up to a second.
constexpr absl::Duration kRefusalBackoffMin = absl::Milliseconds(20);
constexpr absl::Duration kRefusalBackoffMax = absl::Seconds(1);

absl::Duration RefusalBackoff(int refusals) {
  return std::min(kRefusalBackoffMin * (1 << std::min(refusals, 6)), kRefusalBackoffMax);
}

// The node's reason for a failure; never OK.
absl::Status FailureOf(const v1::StatusProto& wire) {
  const absl::Status status = rpc::FromWire(wire);
  return status.ok() ? absl::UnknownError("the node gave no reason") : status;
}
}  // namespace

SequenceMachine::SequenceMachine(RequestInput input, uint64_t number,
                                 const SequenceContext& context, absl::Time now)
    : input_(std::move(input)),
      max_tokens_at_first_(input_.stop->max_tokens),
      context_(context),
      answer_deadline_(now + input_.answer_deadline),
      goal_(tier().ttft_slo, now),
      answer_(input_, context, now),
      legs_(input_, number, context),
      queued_since_(now) {}

absl::Time SequenceMachine::deadline() const {
  if (held_) return answer_deadline_;  // the leader that it waits for has the other deadlines
  if (state_ != State::kQueued) return std::min(state_deadline_, answer_deadline_);
  const bool none_yet = !context_.fleet.decode_node_seen();
  const absl::Duration limit =
      none_yet ? std::min(context_.options.no_node_deadline, context_.options.queue_deadline)
               : context_.options.queue_deadline;
  const absl::Time too_late = RefusesLate() ? goal_.deadline() : absl::InfiniteFuture();
  return std::min({queued_since_ + limit, too_late, answer_deadline_});
}

void SequenceMachine::Unhold(absl::Time now) {
  held_ = false;
  goal_.SetMet();  // the leader's
  queued_since_ = now;
}

// ---- placement

void SequenceMachine::LowerMaxTokens() {
  const LoadOrder& order = context_.fleet.order();
  const int64_t tokens = legs_.prompt().size();
  const int64_t prompt = std::ssize(*input_.prompt);
  const bool begun = legs_.prompt().delivered() > 0;
  // Before the answer begins, nodes may have joined since it was last lowered.
  const int32_t most = begun ? input_.stop->max_tokens : max_tokens_at_first_;
  const int64_t longest = prompt + most;
  if (begun && longest <= order.decode_capacity_tokens()) return;
  const int64_t capacity = order.UsualCapacityTokens(tokens);
  const bool lowered = capacity > tokens && capacity < longest;
  const int32_t fits = lowered ? static_cast<int32_t>(capacity - prompt) : most;
  if (fits != input_.stop->max_tokens) input_.stop.Edit().max_tokens = fits;
}

std::optional<PlacementFailure> SequenceMachine::Place(std::optional<NodeKey> beside,
                                                       const std::vector<NodeKey>& kept,
                                                       absl::Time now) {
  TANDEM_CHECK(state_ == State::kQueued, "request ", input_.id.value());
  if (now < not_before_) return PlacementFailure::kNotYet;
  const Fleet& fleet = context_.fleet;
  // Both legs of a running placement were sent the same prompt, so it grows only here.
  legs_.ExtendPrompt(answer_.delivered());
  if (legs_.prompt().delivered() > 0) {
    if (!fleet.empty() && fleet.numerics_id() != answer_.numerics_id()) {
      Fail(absl::UnavailableError(absl::StrCat("the answer began under numerics id ",
                                               answer_.numerics_id(), "; the fleet now has ",
                                               fleet.numerics_id(), ", which cannot continue it")));
      return std::nullopt;
    }
  }
  if (!input_.max_tokens_given) LowerMaxTokens();
  Placement placement;
  // A node gave it up: it is placed again at once, however late.
  const bool begins = !was_reserved_;
  placement_failure_ =
      legs_.FindPlace({.beside = beside,
                       .kept = kept,
                       .first_token_within = begins ? goal_.Left(now) : absl::InfiniteDuration(),
                       .step_within = begins ? tier().StepWithin() : absl::InfiniteDuration(),
                       .heeds_step_goals = begins,
                       .urgency = UrgencyAt(now)},
                      now, placement);
  if (!placement_failure_.has_value()) {
    StartDecode(placement, now);
    return std::nullopt;
  }
  first_token_predicted_ = placement.first_token_predicted;
  first_token_fastest_ = placement.first_token_fastest;
  if (begins) CheckGoal(now);
  return answer_.failure().ok() ? placement_failure_ : std::nullopt;
}

void SequenceMachine::CheckGoal(absl::Time now) {
  if (RefusesLate() && goal_.HealedByTime(first_token_fastest_)) {
    if (goal_.SurelyMissed(first_token_fastest_, now))
      Fail(LateRefusalStatus(now - submitted() + first_token_fastest_, tier()));
  } else if (goal_.OutOfReach(first_token_fastest_, now)) {
    goal_.SetLate();
  }
}

std::optional<absl::Status> SequenceMachine::LateRefusal(absl::Duration before,
                                                         absl::Duration usual,
                                                         absl::Time now) const {
  const absl::Duration fastest =
      first_token_fastest_ > absl::ZeroDuration() ? first_token_fastest_ : usual;
  if (!RefusesLate() || !goal_.HealedByTime(fastest) || !WouldBeLate(before, fastest, now))
    return std::nullopt;
  return LateRefusalStatus(before + fastest, tier());
}

void SequenceMachine::StartDecode(const Placement& placement, absl::Time now) {
  was_placed_ = true;
  work_ = WorkOf(placement, legs_.prompt().size(), context_.fleet);
  answer_.DropWaiting();
  legs_.Start(placement, WishAt(now));
  answer_.report().OnStartDecode(legs_.decode().node_id());
  answer_.KeepDecision(placement.decision, now);
  answer_.steps().OnPlaced(now, placement.first_token_predicted);
  Enter(State::kReserving, now + context_.options.reserve_deadline);
}

bool SequenceMachine::StartPrefill(absl::Time now) {
  if (!legs_.StartPrefill(WishAt(now))) return false;
  answer_.report().OnPrefill(legs_.prefill().node_id());
  const bool first_token_out =
      static_cast<int32_t>(answer_.delivered().size()) > legs_.prompt().delivered();
  Enter(first_token_out ? State::kInstalling : State::kPrefilling,
        now + context_.options.prefill_deadline);
  return true;
}

// ---- events of nodes

void SequenceMachine::OnEvent(NodeKey node, const v1::NodeEvent& event, absl::Time now) {
  if (done()) return;
  switch (event.event_case()) {
    case v1::NodeEvent::kReserved:
      if (legs_.decode().Is(node, event.reserved().leg())) OnReserved(event.reserved(), now);
      break;
    case v1::NodeEvent::kRefused: {
      const v1::Refused& refused = event.refused();
      if (legs_.decode().Is(node, refused.leg()))
        OnDecodeRefused(refused, now);
      else if (legs_.prefill().Is(node, refused.leg()))
        OnPrefillRefused(FailureOf(refused.status()), now);
      break;
    }
    case v1::NodeEvent::kPrefillFinished:
      if (legs_.prefill().Is(node, event.prefill_finished().leg()) && !legs_.prefill().finished()) {
        legs_.prefill().OnFinished(event.prefill_finished());
        answer_.report().OnPrefillFinished(event.prefill_finished().tokens());
      }
      break;
    case v1::NodeEvent::kPromptScored:
      if (const v1::Leg& leg = event.prompt_scored().leg();
          legs_.decode().Is(node, leg) || legs_.prefill().Is(node, leg))
        answer_.OnPromptScored(event.prompt_scored());
      break;
    case v1::NodeEvent::kInstalled:
      if (legs_.decode().Is(node, event.installed().leg())) OnInstalled(event.installed(), now);
      break;
    case v1::NodeEvent::kLegFinished:
      // The last token of the same message may have ended the leg.
      if (legs_.decode().WasAt(node, event.leg_finished().leg()) && event.leg_finished().has_lent())
        answer_.report().OnLent(event.leg_finished().lent());
      if (legs_.decode().Is(node, event.leg_finished().leg()))
        OnLegFinished(event.leg_finished(), now);
      break;
    case v1::NodeEvent::kLegFailed:
      OnLegFailed(node, event.leg_failed(), now);
      break;
    default:
      break;
  }
}

void SequenceMachine::OnReserved(const v1::Reserved& reserved, absl::Time now) {
  if (state_ != State::kReserving) return;
  if (AwaitsNewEpoch() && reserved.epoch() != legs_.decode().epoch()) return;
  was_reserved_ = true;
  legs_.decode().OnReserved(reserved, legs_.prompt().size());
  answer_.report().OnReserved(legs_.prompt().size(), legs_.decode().cached_tokens());
  answer_.steps().OnReserved(now);
  refusals_ = 0;
  if (legs_.decode().computes_locally()) {
    legs_.OnComputesLocally();
    Enter(State::kGenerating, now + context_.options.prefill_deadline);
    return;
  }
  if (!StartPrefill(now))
    Replace(absl::UnavailableError("no prefill node takes the prompt any more"), now);
}

void SequenceMachine::OnDecodeRefused(const v1::Refused& refused, absl::Time now) {
  if (state_ != State::kReserving) return;
  const absl::Status why = FailureOf(refused.status());
  legs_.prefill().Forget();
  legs_.decode().Forget();
  if (why.code() == absl::StatusCode::kInvalidArgument) {
    Fail(why);
    return;
  }
  const bool full = why.code() == absl::StatusCode::kResourceExhausted;
  legs_.Avoid(legs_.decode().node(), now + (full ? RefusalBackoff(refusals_++) : kFailureMemory));
  if (!full && !CountAttempt(why)) return;
  state_ = State::kQueued;  // queued_since_ stays, so the queue deadline bounds the refusals
}

void SequenceMachine::OnInstalled(const v1::Installed& installed, absl::Time now) {
  if (!legs_.decode().reserved() || legs_.decode().installed()) return;
  legs_.decode().OnInstalled();
  answer_.report().OnInstalled(installed);
  answer_.steps().OnInstalled(now);
  legs_.RecordTransfer(installed);
  // An earlier sender may have filled the lease after all. Then the last one still computes, and is
  // aborted. A single sender has ended by itself: its blocks are acknowledged.
  const bool still_computes = legs_.prefill().tries() > 1 && !legs_.prefill().finished();
  const bool retained_sender = legs_.prefill().retained();
  const bool scores_lost = answer_.AwaitsScores() && !legs_.decode().computes_locally() &&
                           (still_computes || retained_sender || !legs_.prefill().live());
  if (still_computes)
    legs_.prefill().Abort("another sender filled the lease");
  else
    legs_.prefill().Forget();
  // An earlier sender's last part may have arrived before NewEpoch did.
  if (AwaitsPrefill() || AwaitsNewEpoch())
    Enter(State::kGenerating, now + context_.options.token_deadline);
  if (scores_lost) {
    // The node that scored the prompt is lost, or its leg was replaced.
    const auto why = absl::UnavailableError("the prompt's KV came without its log-probabilities");
    return answer_.complete() ? Fail(why) : Replace(why, now);
  }
  if (!installed.has_first_token()) return;
  // The KV transfer repeats the token that the prefill node announced: that is no duplicate.
  if (const absl::Status status = Offer(installed.first_token(), false, now); !status.ok()) {
    GiveUpDecode(status, now);
    return;
  }
  CheckEnd(false);
}

void SequenceMachine::OnTokens(NodeKey node, const v1::TokensGenerated::Step& step,
                               absl::Time now) {
  if (done()) return;
  if (legs_.decode().Is(node, step.leg()))
    OnDecodeTokens(step, now);
  else if (legs_.prefill().Is(node, step.leg()) && legs_.prefill().live() && AwaitsPrefill())
    OnPrefillTokens(step, now);
}

void SequenceMachine::OnDecodeTokens(const v1::TokensGenerated::Step& step, absl::Time now) {
  if (!legs_.decode().reserved()) return;
  for (const v1::GeneratedToken& token : step.tokens()) {
    if (const absl::Status status = Offer(token, true, now); !status.ok()) {
      GiveUpDecode(status, now);
      return;
    }
  }
  // Without a token the node says that the sequence waits there, as one that was preempted does.
  if (state_ == State::kGenerating) state_deadline_ = now + context_.options.token_deadline;
  CheckEnd(true);
}

void SequenceMachine::OnPrefillTokens(const v1::TokensGenerated::Step& step, absl::Time now) {
  for (const v1::GeneratedToken& token : step.tokens()) {
    const absl::Status status =
        token.index() == legs_.prompt().delivered()
            ? Offer(token, true, now)
            : absl::DataLossError(absl::StrCat("prefill node ", legs_.prefill().node_id(),
                                               " sent token ", token.index(), ", expected ",
                                               legs_.prompt().delivered()));
    if (!status.ok()) {
      OnPrefillFailed(status, now);
      return;
    }
    if (state_ == State::kPrefilling) state_ = State::kInstalling;
  }
  CheckEnd(false);
}

absl::Status SequenceMachine::Offer(const v1::GeneratedToken& token, bool count_duplicate,
                                    absl::Time now) {
  const bool first = !answer_.steps().first_token.has_value();
  const absl::Status status = answer_.Offer(
      token, count_duplicate, {legs_.decode().node_id(), legs_.prefill().node_id()}, now);
  if (first && answer_.steps().first_token.has_value()) OnFirstToken(now);
  return status;
}

void SequenceMachine::CheckEnd(bool decode_leg_ends_itself) {
  if (!answer_.complete() || answer_.ended()) return;
  if (input_.installs_prompt && !legs_.decode().installed()) return;
  answer_.End(answer_.finish());
  legs_.prefill().Abort("the answer is complete");
  if (decode_leg_ends_itself)
    legs_.decode().Forget();
  else
    legs_.decode().Abort("the answer is complete");
}

void SequenceMachine::OnLegFinished(const v1::LegFinished& finished, absl::Time now) {
  const request::FinishReason reason = rpc::FromWire(finished.reason());
  const auto delivered = static_cast<int32_t>(answer_.delivered().size());
  if (reason != request::FinishReason::kStop && reason != request::FinishReason::kLength) {
    GiveUpDecode(
        absl::UnavailableError(absl::StrCat("decode node ", legs_.decode().node_id(),
                                            " ended the leg without a reason that ends an answer")),
        now);
    return;
  }
  // Only nodes know when a constraint is satisfied: the last node may have been lost before it said
  // that the answer was complete.
  const bool was_complete = input_.guided->any() && reason == request::FinishReason::kStop &&
                            delivered > 0 && finished.output_tokens() == delivered;
  const bool says_nothing = delivered == legs_.prompt().delivered() && !was_complete;
  if (says_nothing || finished.output_tokens() > delivered || answer_.waiting() > 0) {
    GiveUpDecode(absl::DataLossError(absl::StrCat("decode node ", legs_.decode().node_id(),
                                                  " ended the leg after ", finished.output_tokens(),
                                                  " tokens, but ", delivered, " arrived")),
                 now);
    return;
  }
  answer_.End(reason);
  legs_.prefill().Abort("the answer is complete");
  legs_.decode().Forget();
}

void SequenceMachine::OnLegFailed(NodeKey node, const v1::LegFailed& failed, absl::Time now) {
  if (legs_.decode().Is(node, failed.leg()))
    OnDecodeFailed(failed, now);
  else if (legs_.prefill().live() && legs_.prefill().Is(node, failed.leg()))
    OnPrefillLegFailed(failed, now);
  else if (legs_.IsEarlierSender(failed.leg()) && !failed.sender_side())
    OnLeaseInDoubt(FailureOf(failed.status()), now);
}

void SequenceMachine::OnDecodeFailed(const v1::LegFailed& failed, absl::Time now) {
  const absl::Status why = FailureOf(failed.status());
  if (failed.sender_side() && legs_.decode().reserved() && !legs_.decode().computes_locally()) {
    if (!AwaitsPrefill()) return;
    if (failed.epoch() != 0 && failed.epoch() != legs_.decode().epoch()) return;
    context_.fleet.KvTransferFailed(legs_.prefill().node(), legs_.decode().node(), now);
    return RetryPrefill(why, now);
  }
  legs_.decode().Forget();
  if (failed.request_at_fault()) {
    legs_.prefill().Abort("no node can continue the request");
    return Fail(why);
  }
  if (failed.retained()) legs_.RetainDecodeLeg();
  context_.fleet.LegFailed(legs_.decode().node(), why);
  GiveUpDecode(why, now);
}

void SequenceMachine::OnPrefillLegFailed(const v1::LegFailed& failed, absl::Time now) {
  const absl::Status why = FailureOf(failed.status());
  if (failed.sender_side()) {
    if (AwaitsPrefill())
      context_.fleet.KvTransferFailed(legs_.prefill().node(), legs_.decode().node(), now);
    return OnPrefillFailed(why, now);
  }
  if (!AwaitsPrefill()) return;
  context_.fleet.LegFailed(legs_.prefill().node(), why);
  legs_.Avoid(legs_.prefill().node(), now + kFailureMemory);
  OnLeaseInDoubt(why, now);
}

void SequenceMachine::OnPrefillFailed(const absl::Status& why, absl::Time now) {
  if (!legs_.prefill().live() || !AwaitsPrefill()) return;
  RetryPrefill(why, now);
}

bool SequenceMachine::OnNodeLost(NodeKey node, const absl::Status& why, absl::Time now) {
  if (done()) return false;
  legs_.OnNodeLost(node);
  if (legs_.decode().live() && legs_.decode().node() == node) {
    Replace(why, now);
  } else if (legs_.prefill().node() == node && legs_.prefill().live() && AwaitsPrefill()) {
    RetryPrefill(why, now);
  } else if (legs_.prefill().node() == node && legs_.prefill().sent() && answer_.AwaitsScores() &&
             !legs_.decode().computes_locally() &&
             (legs_.decode().installed() || answer_.ended())) {
    // The prompt's KV has arrived, or is not needed any more, but not all scores have arrived.
    if (!answer_.ended())
      Replace(why, now);
    else
      Fail(why);
  } else {
    return false;
  }
  return true;
}

// ---- ends

void SequenceMachine::Finish(request::FinishReason reason) {
  if (done()) return;
  // A complete answer that waits for its prompt's scores can still be aborted.
  const bool open = !answer_.ended() || reason == request::FinishReason::kAborted;
  if (!open || !answer_.failure().ok()) return;
  answer_.End(reason);
  legs_.Abort(reason == request::FinishReason::kStop ? "the answer is complete" : "aborted");
}

void SequenceMachine::Fail(absl::Status status) {
  legs_.Abort("the request failed");
  answer_.Fail(std::move(status));
}

SequenceMachine::Outcome SequenceMachine::Settle(absl::Time now) {
  if (done()) return {};
  Outcome outcome = answer_.Take(attempts_, now);
  if (outcome.done.has_value() || !outcome.failure.ok()) state_ = State::kDone;
  return outcome;
}

// ---- deadlines

void SequenceMachine::OnDeadline(absl::Time now) {
  const RouterOptions& options = context_.options;
  if (answer_.ended() && answer_.AwaitsScores() && now >= deadline())
    return Fail(absl::UnavailableError("the prompt's log-probabilities did not arrive"));
  if (done() || now < deadline()) return;
  if (now >= answer_deadline_) return Fail(AnswerDeadlineStatus());
  switch (state_) {
    case State::kQueued:
      if (RefusesLate() && now >= goal_.deadline())
        return Fail(LateRefusalStatus(absl::ZeroDuration(), tier()));
      Fail(QueueDeadlineStatus(
          context_,
          {legs_.prompt().size(), std::ssize(*input_.prompt) + int64_t{input_.stop->max_tokens},
           tier()},
          placement_failure_));
      break;
    case State::kReserving:
      GiveUpDecode(LateStatus("no answer to the reservation came", options.reserve_deadline), now);
      break;
    case State::kPrefilling:
    case State::kInstalling: {
      const absl::Status why = absl::DeadlineExceededError(
          absl::StrCat("prefill node ", legs_.prefill().node_id(),
                       ": the prompt's KV did not reach decode node ", legs_.decode().node_id(),
                       " within ", absl::FormatDuration(options.prefill_deadline)));
      context_.fleet.KvTransferFailed(legs_.prefill().node(), legs_.decode().node(), now);
      // Two senders were late for one lease: the receiver is what they have in common.
      if (legs_.prefill().tries() > 1) {
        GiveUpDecode(why, now);
      } else {
        RetryPrefill(why, now);
      }
      break;
    }
    case State::kGenerating:
      GiveUpDecode(LateStatus("no token", options.token_deadline), now);
      break;
    case State::kDone:
      break;
  }
}

absl::Status SequenceMachine::LateStatus(absl::string_view what, absl::Duration limit) const {
  return absl::DeadlineExceededError(absl::StrCat("decode node ", legs_.decode().node_id(), ": ",
                                                  what, " within ", absl::FormatDuration(limit)));
}

absl::Status SequenceMachine::AnswerDeadlineStatus() const {
  return absl::DeadlineExceededError(
      absl::StrCat("the answer was not complete within its ",
                   absl::FormatDuration(input_.answer_deadline), ": ", answer_.delivered().size(),
                   " of at most ", input_.stop->max_tokens, " tokens were delivered"));
}

}  // namespace tandem::router
