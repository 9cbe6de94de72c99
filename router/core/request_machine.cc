// How a request is placed, retried and ended. Its nodes' events are in request_events.cc.
#include "router/core/request_machine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/rpc/convert.h"
#include "common/telemetry/log.h"

namespace tandem::router {

RequestMachine::RequestMachine(RequestInput input, uint64_t number, RequestContext context,
                               absl::Time now)
    : input_(std::move(input)),
      number_(number),
      context_(context),
      answer_deadline_(now + input_.answer_deadline),
      tokens_(input_.stop, input_.eos_token_ids, context.model.vocab_size),
      sequence_(input_.prompt),
      queued_since_(now) {
  steps_.submitted = now;
  last_attempt_ = input_.attempts_before;
  if (input_.prompt_logprobs.has_value()) prompt_scores_.emplace();
}

absl::Time RequestMachine::deadline() const {
  if (held_) return answer_deadline_;  // the sequence it waits for has the others
  if (state_ != State::kQueued) return std::min(state_deadline_, answer_deadline_);
  const bool none_yet = !context_.fleet.decode_node_seen();
  const absl::Duration limit =
      none_yet ? std::min(context_.options.no_node_deadline, context_.options.queue_deadline)
               : context_.options.queue_deadline;
  return std::min(queued_since_ + limit, answer_deadline_);
}

void RequestMachine::Unhold(absl::Time now) {
  held_ = false;
  queued_since_ = now;
}

// ---- commands

v1::Leg RequestMachine::MakeLeg(uint32_t attempt) const {
  v1::Leg leg;
  leg.set_request_id(input_.id.value());
  leg.set_sequence_index(input_.sequence_index);
  leg.set_attempt(attempt);
  leg.set_number(number_);
  return leg;
}

v1::SequenceSpec RequestMachine::MakeSequence() const {
  v1::SequenceSpec spec;
  spec.mutable_prompt()->Add(sequence_.begin(), sequence_.end());
  spec.set_delivered_tokens(base_);
  *spec.mutable_sampling() = rpc::ToWire(input_.sampling);
  *spec.mutable_stop() = rpc::ToWire(input_.stop);
  spec.mutable_stop()->clear_stop();  // stop strings are matched at the router
  spec.mutable_eos_token_ids()->Add(input_.eos_token_ids.begin(), input_.eos_token_ids.end());
  spec.set_cache_salt(input_.cache_salt);
  if (input_.guided.any()) *spec.mutable_guided() = rpc::ToWire(input_.guided);
  spec.set_priority(input_.priority);
  if (AwaitsScores()) spec.set_prompt_logprobs(*input_.prompt_logprobs);
  if (context_.fleet.mixes_numerics()) spec.set_numerics_id(context_.fleet.numerics_id());
  return spec;
}

void RequestMachine::Send(NodeKey node, v1::NodeCommand command) {
  if (context_.fleet.Find(node) == nullptr) return;
  context_.actions.commands.emplace_back(node, std::move(command));
}

void RequestMachine::SendAbort(NodeKey node, uint32_t attempt, absl::string_view reason) {
  v1::NodeCommand command;
  *command.mutable_abort()->mutable_leg() = MakeLeg(attempt);
  command.mutable_abort()->set_reason(std::string(reason));
  Send(node, std::move(command));
}

// ---- placement

void RequestMachine::ExtendSequence() {
  const auto delivered = static_cast<int32_t>(tokens_.delivered().size());
  if (delivered == base_) return;
  sequence_.insert(sequence_.end(), tokens_.delivered().begin() + base_, tokens_.delivered().end());
  base_ = delivered;
  hashes_generation_ = 0;
}

PlacementRequest RequestMachine::MakePlacementRequest(absl::Time now) {
  const Fleet& fleet = context_.fleet;
  if (!fleet.empty() && hashes_generation_ != fleet.generation()) {
    hashes_ = kv::HashBlocks(
        kv::SaltHash(context_.model.fingerprint, fleet.numerics_id(), input_.cache_salt), sequence_,
        fleet.block_tokens());
    hashes_generation_ = fleet.generation();
  }
  PlacementRequest request;
  request.prompt_tokens = static_cast<int64_t>(sequence_.size());
  request.tokens_total =
      static_cast<int64_t>(input_.prompt.size()) + int64_t{input_.stop.max_tokens};
  request.hashes = hashes_;
  request.now = now;
  request.failed = &failed_;
  return request;
}

std::optional<PlacementFailure> RequestMachine::Place(std::optional<NodeKey> beside,
                                                      absl::Time now) {
  TANDEM_CHECK(state_ == State::kQueued, "request ", input_.id.value());
  if (now < not_before_) return PlacementFailure::kNotYet;
  Fleet& fleet = context_.fleet;
  // A running placement's sequence is what both its legs were sent; only here may it grow.
  ExtendSequence();
  if (base_ > 0) {
    if (!fleet.empty() && fleet.numerics_id() != numerics_id_) {
      Fail(absl::UnavailableError(absl::StrCat("the answer was begun with numerics id ",
                                               numerics_id_, ", the fleet now has ",
                                               fleet.numerics_id())));
      return std::nullopt;
    }
  } else if (!input_.max_tokens_given && fleet.decode_capacity_tokens() > 0) {
    const int64_t room =
        fleet.decode_capacity_tokens() - static_cast<int64_t>(input_.prompt.size());
    if (room >= 1)
      input_.stop.max_tokens =
          static_cast<int32_t>(std::min<int64_t>(input_.stop.max_tokens, room));
  }
  Placement placement;
  const PlacementRequest request = MakePlacementRequest(now);
  in_the_way_.reset();
  if (!beside.has_value() || !context_.placement.PlaceBeside(request, *beside, placement))
    in_the_way_ = context_.placement.Place(request, placement);
  if (!in_the_way_.has_value()) StartDecode(placement, now);
  return in_the_way_;
}

void RequestMachine::StartDecode(const Placement& placement, absl::Time now) {
  const Node& node = *context_.fleet.Find(placement.decode);
  decode_ = {};
  decode_.node = placement.decode;
  decode_.node_id = node.id.value();
  decode_.attempt = ++last_attempt_;
  decode_.live = true;
  decode_.blocks = node.blocks_for(static_cast<int64_t>(sequence_.size()) + 1) -
                   placement.decode_cached_tokens / node.block_tokens;
  context_.fleet.DecodePlaced(decode_.node, decode_.blocks);
  if (placement.decode_cached_tokens > 0) context_.index.Touch(node.slot);
  prefill_ = {};
  tokens_.DropWaiting();
  const Node* keeper = RetainedBy();
  if (keeper != nullptr) {
    PlanPrefill(keeper->key, static_cast<int64_t>(sequence_.size()));
    prefill_.retained = true;
  } else if (placement.prefill.has_value()) {
    PlanPrefill(*placement.prefill, placement.prefill_cached_tokens);
  }

  v1::NodeCommand command;
  v1::StartDecode& run = *command.mutable_start_decode();
  *run.mutable_leg() = MakeLeg(decode_.attempt);
  *run.mutable_sequence() = MakeSequence();
  run.set_trace_id(input_.trace_id);
  // What is retained is sent, however little it is.
  run.set_local_prefill_tokens_max(keeper != nullptr ? 0 : placement.local_prefill_tokens_max);
  run.set_deadline_s(absl::ToDoubleSeconds(context_.options.prefill_deadline));
  Send(decode_.node, std::move(command));

  report_.OnRun(decode_.node_id);
  steps_.OnPlaced(now);
  state_ = State::kReserving;
  state_deadline_ = now + context_.options.reserve_deadline;
}

void RequestMachine::PlanPrefill(NodeKey node, int64_t cached_tokens) {
  const int tries = prefill_.tries;
  prefill_ = {};
  prefill_.tries = tries;
  prefill_.node = node;
  const Node& found = *context_.fleet.Find(node);
  prefill_.node_id = found.id.value();
  prefill_.tokens = static_cast<int64_t>(sequence_.size()) - cached_tokens;
  prefill_.counted = true;
  context_.fleet.PrefillPlaced(node, prefill_.tokens);
  if (cached_tokens > 0) context_.index.Touch(found.slot);
}

bool RequestMachine::StartPrefill(absl::Time now) {
  const bool planned = prefill_.counted && prefill_.attempt == 0;
  const Node* node = planned ? context_.fleet.Find(prefill_.node) : nullptr;
  if (node == nullptr || (node->draining && !prefill_.retained)) {
    ReleasePrefillTokens();
    const auto place = context_.placement.PlacePrefill(MakePlacementRequest(now), decode_.node);
    if (!place.has_value()) return false;
    PlanPrefill(place->node, place->cached_tokens);
  }
  SendPrefill(now);
  return true;
}

void RequestMachine::SendPrefill(absl::Time now) {
  prefill_.attempt = ++last_attempt_;
  prefill_.live = true;
  if (prefill_.retained) {
    retained_.reset();
    decode_.moved = true;
  }
  ++prefill_.tries;
  const Node& receiver = *context_.fleet.Find(decode_.node);

  v1::NodeCommand command;
  v1::Prefill& prefill = *command.mutable_prefill();
  *prefill.mutable_leg() = MakeLeg(prefill_.attempt);
  *prefill.mutable_sequence() = MakeSequence();
  prefill.set_lease_id(decode_.lease);
  prefill.set_epoch(decode_.epoch);
  prefill.set_first_ordinal(static_cast<int32_t>((decode_.cached_tokens + decode_.received_tokens) /
                                                 receiver.block_tokens));
  prefill.set_receiver_node_id(receiver.id.value());
  prefill.set_receiver_incarnation(receiver.incarnation.value());
  prefill.set_receiver_address(receiver.transfer_address);
  prefill.set_receiver_host(receiver.host);
  prefill.set_trace_id(input_.trace_id);
  prefill.set_deadline_s(absl::ToDoubleSeconds(context_.options.prefill_deadline));
  Send(prefill_.node, std::move(command));

  report_.OnPrefill(prefill_.node_id);
  const bool first_token_out = static_cast<int32_t>(tokens_.delivered().size()) > base_;
  state_ = first_token_out ? State::kInstalling : State::kPrefilling;
  state_deadline_ = now + context_.options.prefill_deadline;
}

// ---- retries

bool RequestMachine::CountAttempt(const absl::Status& why) {
  if (attempts_ < context_.options.attempts_max) {
    ++attempts_;
    return true;
  }
  Fail(absl::UnavailableError(
      absl::StrCat("gave up after ", attempts_, " attempts; the last: ", why.message())));
  return false;
}

void RequestMachine::RetryPrefill(const absl::Status& why, absl::Time now) {
  // A node that drains ends as soon as its last export is acknowledged, often before the receiver's
  // word is here: that is no outage.
  const bool retained = prefill_.retained;
  if (tokens_.finish() != request::FinishReason::kNone ||
      (!retained && !context_.retries.HasRoom(now)))
    return Replace(why, now);
  LogRetry("prefill leg is retried", prefill_.node_id, why);
  MarkFailed(prefill_.node, now + kFailureMemory);
  EndPrefillLeg("replaced");
  if (!retained) {
    if (!CountAttempt(why)) return;
    context_.retries.Take(/*retry=*/1, now);
  }
  ++decode_.epoch;
  const auto place = context_.placement.PlacePrefill(MakePlacementRequest(now), decode_.node);
  v1::NodeCommand command;
  v1::NewEpoch& epoch = *command.mutable_new_epoch();
  *epoch.mutable_leg() = MakeLeg(decode_.attempt);
  epoch.set_lease_id(decode_.lease);
  epoch.set_epoch(decode_.epoch);
  epoch.set_local_prefill_tokens_max(place.has_value() ? context_.options.local_prefill_tokens_max
                                                       : -1);
  Send(decode_.node, std::move(command));
  if (place.has_value()) PlanPrefill(place->node, place->cached_tokens);
  state_ = State::kReserving;
  state_deadline_ = now + context_.options.reserve_deadline;
}

void RequestMachine::Replace(const absl::Status& why, absl::Time now) {
  // The answer was complete and only its prompt's KV was waited for, for the sequences beside it:
  // nothing is left to place.
  if (tokens_.finish() != request::FinishReason::kNone) {
    ending_ = tokens_.finish();
    EndPrefillLeg("the answer is complete");
    EndDecodeLeg("the answer is complete");
    ReleaseRetained("the answer is complete");
    return;
  }
  LogRetry("request is placed again", decode_.node_id, why);
  const Node* node = context_.fleet.Find(decode_.node);
  const bool drains = node != nullptr && node->draining;
  EndPrefillLeg("the decode leg is gone");
  EndDecodeLeg("replaced");
  decode_.installed = false;  // the prompt lies nowhere for sure: see home()
  if (!drains && !CountAttempt(why)) return;
  not_before_ = now + context_.retries.Take(attempts_ - 1, now);
  state_ = State::kQueued;
  queued_since_ = now;
}

void RequestMachine::MarkFailed(NodeKey node, absl::Time until) {
  // Nodes that have left cannot be picked anyway, so the list is bounded by the fleet.
  failed_.erase(std::remove_if(failed_.begin(), failed_.end(),
                               [&](const auto& entry) {
                                 return entry.first == node ||
                                        context_.fleet.Find(entry.first) == nullptr;
                               }),
                failed_.end());
  failed_.emplace_back(node, until);
}

void RequestMachine::LogRetry(absl::string_view what, const std::string& node,
                              const absl::Status& why) const {
  Log(LogLevel::kWarning, what,
      {{"request_id", input_.id.value()},
       {input_.trace_id.empty() ? "" : "trace_id", input_.trace_id},
       {"node_id", node},
       {"attempt", attempts_},
       {"delivered_tokens", tokens_.delivered().size()},
       {"why", why.message()}});
}

// ---- ends

void RequestMachine::EndDecodeLeg(absl::string_view abort_reason) {
  if (!decode_.live) return;
  if (!abort_reason.empty()) SendAbort(decode_.node, decode_.attempt, abort_reason);
  context_.fleet.DecodeEnded(decode_.node, decode_.reserved ? 0 : decode_.blocks);
  decode_.live = false;
}

void RequestMachine::ReleasePrefillTokens() {
  if (!prefill_.counted) return;
  context_.fleet.PrefillEnded(prefill_.node, prefill_.tokens);
  prefill_.counted = false;
}

void RequestMachine::ReleaseRetained(absl::string_view reason) {
  if (retained_.has_value()) SendAbort(retained_->node, retained_->attempt, reason);
  retained_.reset();
}

const Node* RequestMachine::RetainedBy() const {
  return retained_.has_value() ? context_.fleet.Find(retained_->node) : nullptr;
}

void RequestMachine::CountMove(const v1::Installed& installed) {
  RouterCounters& counters = context_.counters;
  const int64_t computed = installed.tokens().computed() + installed.prefill_tokens().computed();
  counters.kv_tokens_recomputed += computed;
  if (computed > 0) return;  // by another sender, or by the receiver
  ++counters.sequences_moved;
  counters.kv_tokens_moved += installed.tokens().received();
}

void RequestMachine::EndPrefillLeg(absl::string_view abort_reason) {
  ReleasePrefillTokens();
  if (!prefill_.live) return;
  if (!abort_reason.empty()) SendAbort(prefill_.node, prefill_.attempt, abort_reason);
  prefill_.live = false;
}

void RequestMachine::Finish(request::FinishReason reason) {
  if (done()) return;
  // An answer that only waits for its prompt's scores can still be aborted.
  const bool open =
      ending_ == request::FinishReason::kNone || reason == request::FinishReason::kAborted;
  if (open && failure_.ok()) {
    ending_ = reason;
    const absl::string_view why =
        reason == request::FinishReason::kStop ? "the answer is complete" : "aborted";
    EndPrefillLeg(why);
    EndDecodeLeg(why);
    ReleaseRetained(why);
  }
}

void RequestMachine::Fail(absl::Status status) {
  EndPrefillLeg("the request failed");
  EndDecodeLeg("the request failed");
  ReleaseRetained("the request failed");
  failure_ = std::move(status);
}

void RequestMachine::OnDeadline(absl::Time now) {
  const RouterOptions& options = context_.options;
  if (ending_ != request::FinishReason::kNone && AwaitsScores() && now >= deadline())
    return Fail(absl::UnavailableError("the prompt's log-probabilities did not arrive"));
  if (done() || now < deadline()) return;
  if (now >= answer_deadline_) return Fail(AnswerDeadlineStatus());
  const auto late = [&](absl::string_view what, absl::Duration limit) {
    return absl::DeadlineExceededError(absl::StrCat("decode node ", decode_.node_id, ": ", what,
                                                    " within ", absl::FormatDuration(limit)));
  };
  switch (state_) {
    case State::kQueued:
      Fail(QueueDeadlineStatus());
      break;
    case State::kReserving:
      GiveUpDecode(late("no word of what the prompt lacks", options.reserve_deadline), now);
      break;
    case State::kPrefilling:
    case State::kInstalling: {
      // A second late prefill under one lease: the receiver is the common part.
      const absl::Status why = late("the prompt's KV did not arrive", options.prefill_deadline);
      context_.fleet.KvTransferFailed(prefill_.node, decode_.node, now);
      if (prefill_.tries > 1) {
        GiveUpDecode(why, now);
      } else {
        RetryPrefill(why, now);
      }
      break;
    }
    case State::kGenerating:
      GiveUpDecode(late("no token", options.token_deadline), now);
      break;
    case State::kDone:
      break;
  }
}

absl::Status RequestMachine::AnswerDeadlineStatus() const {
  return absl::DeadlineExceededError(absl::StrCat(
      "the answer was not complete within its ", absl::FormatDuration(input_.answer_deadline), ": ",
      tokens_.delivered().size(), " of at most ", input_.stop.max_tokens, " tokens are out"));
}

absl::Status RequestMachine::QueueDeadlineStatus() const {
  const int64_t total =
      static_cast<int64_t>(input_.prompt.size()) + int64_t{input_.stop.max_tokens};
  const std::string limit = absl::FormatDuration(context_.options.queue_deadline);
  if (!context_.fleet.decode_node_seen())
    return absl::UnavailableError("no decode node has joined this router");
  switch (in_the_way_.value_or(PlacementFailure::kNoRoom)) {
    case PlacementFailure::kNoDecodeNode:
      return absl::UnavailableError(
          absl::StrCat("no decode node took work within ", limit,
                       ": those that had joined this router are lost or draining"));
    case PlacementFailure::kNeverFits:
      return absl::InvalidArgumentError(
          absl::StrCat("the request needs ", total, " tokens of KV, the largest decode node holds ",
                       context_.fleet.decode_capacity_tokens()));
    case PlacementFailure::kNoRoom:
    case PlacementFailure::kNotYet:
      break;
  }
  return absl::ResourceExhaustedError(absl::StrCat("no decode node had room for ", sequence_.size(),
                                                   " prompt tokens within ", limit));
}

RequestMachine::Outcome RequestMachine::Settle(absl::Time now) {
  Outcome outcome;
  if (done()) return outcome;
  if (!failure_.ok()) {
    outcome.failure = failure_;
    state_ = State::kDone;
    return outcome;
  }
  if (AwaitsScores()) {
    // The client gets them before any token, or neither.
    if (ending_ != request::FinishReason::kAborted) return outcome;
  } else {
    if (prompt_scores_.has_value() && !std::exchange(prompt_scores_given_, true))
      outcome.prompt_scores = *prompt_scores_;
    outcome.tokens = tokens_.TakeReady();
  }
  if (ending_ == request::FinishReason::kNone) return outcome;
  RequestDone& done = outcome.done.emplace();
  done.sequence_index = input_.sequence_index;
  done.reason = ending_;
  done.usage = report_.Usage(static_cast<int32_t>(input_.prompt.size()),
                             static_cast<int32_t>(tokens_.delivered().size()));
  done.route = report_.Route(attempts_);
  done.route.set_mixed_numerics(context_.fleet.mixes_numerics());
  done.timing = steps_.Timing(now);
  state_ = State::kDone;
  return outcome;
}

}  // namespace tandem::router
