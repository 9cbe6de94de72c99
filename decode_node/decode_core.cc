#include "decode_node/decode_core.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutation.h"
#include "common/base/status_macros.h"
#include "common/node/sequence.h"
#include "common/rpc/convert.h"

namespace tandem::decode_node {

// ---- commands ------------------------------------------------------------------------------

void DecodeCore::OnCommand(node::RouterKey router, const v1::NodeCommand& command, absl::Time now) {
  switch (command.command_case()) {
    case v1::NodeCommand::kStartDecode:
      return StartDecode(router, command.start_decode(), now, now);
    case v1::NodeCommand::kNewEpoch:
      return NewEpoch(router, command.new_epoch(), now);
    case v1::NodeCommand::kAbort:
      return Abort(router, command.abort());
    case v1::NodeCommand::kPrefill:
      return retained_.Send(router, command.prefill(), now);
    case v1::NodeCommand::kAdoptBlocks:
    case v1::NodeCommand::kSendBlocks:
    case v1::NodeCommand::kLendBlocks:
    case v1::NodeCommand::kLoanAnswer:
    case v1::NodeCommand::kBorrowBlocks:
      if (resources_.OnCommand(router, command, now))
        EndFetching(LeaseId(command.send_blocks().lease_id()), nullptr, now);
      return;
    case v1::NodeCommand::COMMAND_NOT_SET:
      return;
  }
}

// What was received and verified stays. The Reserved that answers waits for EpochRaised, which says
// how much that is.
void DecodeCore::NewEpoch(node::RouterKey router, const v1::NewEpoch& command, absl::Time now) {
  const auto it = legs_.find(node::LegKey(router, command.leg()));
  if (it == legs_.end()) {
    ledger_.FailLeg(
        router, command.leg(),
        absl::NotFoundError(absl::StrCat("lease ", command.lease_id(),
                                         ": this node does not have its leg (any more)")),
        /*sender_side=*/false);
    return;
  }
  Leg& leg = it->second;
  if (command.leg().attempt() < leg.wire.attempt()) return;
  // The lease was installed in the meantime: Installed is already on its way to the router.
  if (leg.phase != Phase::kReceiving) return;
  if (command.lease_id() != leg.lease.value() || command.epoch() <= leg.epoch.value()) {
    ledger_.FailLeg(
        router, command.leg(),
        absl::FailedPreconditionError(absl::StrCat(
            "NewEpoch names lease ", command.lease_id(), " epoch ", command.epoch(),
            ", expected lease ", leg.lease.value(), " and an epoch above ", leg.epoch.value())),
        /*sender_side=*/false);
    return;
  }
  if (command.local_prefill_tokens_max() < -1) {
    ledger_.FailLeg(
        router, command.leg(),
        absl::InvalidArgumentError(absl::StrCat(
            "local_prefill_tokens_max: ", command.local_prefill_tokens_max(), ", expected >= -1")),
        /*sender_side=*/false);
    return End(it, "invalid command");
  }
  leg.local_prefill_tokens_max = command.local_prefill_tokens_max();
  leg.wire.set_attempt(command.leg().attempt());
  leg.epoch = Epoch(command.epoch());
  leg.deadline = now + leg.time_allowed;
  ledger_.Transfer(
      transfer::RaiseEpoch{.lease = leg.lease, .epoch = leg.epoch, .deadline = leg.deadline});
}

// Ends a leg in whatever phase it is; ignores unknown legs and older attempts.
void DecodeCore::Abort(node::RouterKey router, const v1::AbortLeg& command) {
  const node::LegKey key(router, command.leg());
  const auto it = legs_.find(key);
  if (TANDEM_MUTATED(kAbortIgnored)) return;
  intake_.Drop(key, command.leg().attempt() + 1);
  retained_.Abort(router, command);
  if (it == legs_.end() || command.leg().attempt() < it->second.wire.attempt()) return;
  // The router knows all about the answer, but not what it cost other nodes.
  if (LentSome(it->second)) return Finish(it, request::FinishReason::kAborted, command.reason());
  End(it, command.reason());
}

// ---- deadlines, drains, ends of legs -------------------------------------------------------

void DecodeCore::OnRouterLost(node::RouterKey router, absl::Time) {
  if (TANDEM_MUTATED(kRouterLossIgnored)) return;
  for (auto it = legs_.begin(); it != legs_.end();) {
    const auto leg = it++;
    if (leg->first.router == router) End(leg, "router lost");
  }
  retained_.OnRouterLost(router);
  resources_.OnRouterLost(router);
}

// A generating sequence is retained when its next step ends, because all of its tokens are computed
// then: see OnStepDone.
void DecodeCore::StartMigration(absl::Time now, absl::Duration time_left) {
  migration_until_ = now + time_left / 2;
  for (auto it = legs_.begin(); it != legs_.end();) {
    const auto leg = it++;
    // What a sequence has lent is not here to be sent.
    const node::Sequence& sequence = scheduler_.Get(leg->second.sequence);
    const bool retained_soon =
        leg->second.phase == Phase::kGenerating && !sequence.blocks.empty() && !sequence.borrows();
    if (!retained_soon) GiveUpForDrain(leg);
  }
}

void DecodeCore::GiveUpForDrain(Legs::iterator leg) {
  FailAndEnd(leg,
             absl::UnavailableError("this node is draining: continue the sequence on another node"),
             "migrated");
}

void DecodeCore::Retain(Legs::iterator it, const engine::SampledToken& next) {
  RetainedSequences::Entry entry{.key = it->first,
                                 .leg = it->second.wire,
                                 .sequence = it->second.sequence,
                                 .next = next,
                                 .until = *migration_until_};
  by_sequence_.erase(it->second.sequence);
  legs_.erase(it);
  retained_.Retain(std::move(entry));
}

void DecodeCore::OnTick(absl::Time now) {
  retained_.OnTick(now);
  for (const node::StoredBlocks::Ready& ready : resources_.OnTick(now)) Resubmit(ready, now);
  EndStarved(now);
  ReportWaiting(now);
  const bool too_late = migration_until_.has_value() && *migration_until_ <= now;
  for (auto it = legs_.begin(); it != legs_.end();) {
    const auto leg = it++;
    if (too_late) {
      GiveUpForDrain(leg);
      continue;
    }
    if (leg->second.phase == Phase::kGenerating || leg->second.deadline > now) continue;
    if (leg->second.phase == Phase::kReceiving) {
      ledger_.counters().set_leases_expired(ledger_.counters().leases_expired() + 1);
    }
    ledger_.FailLeg(leg->first.router, leg->second.wire,
                    absl::DeadlineExceededError(absl::StrCat(
                        "no first token within ", absl::FormatDuration(leg->second.time_allowed))),
                    /*sender_side=*/false, leg->second.trace_id);
    End(leg, "deadline");
  }
}

void DecodeCore::End(Legs::iterator it, const std::string& reason) {
  const Leg& leg = it->second;
  LogLentUse(leg);
  by_sequence_.erase(leg.sequence);
  if (leg.phase == Phase::kReceiving || leg.phase == Phase::kClosing) {
    by_lease_.erase(leg.lease);
    std::vector<BlockId>& blocks = draining_leases_[leg.lease];
    blocks = scheduler_.ReleaseQuarantining(leg.sequence, leg.first_ordinal, leg.lease_blocks);
    if (TANDEM_MUTATED(kQuarantineSkipped)) scheduler_.EndQuarantine(std::exchange(blocks, {}));
    if (leg.phase == Phase::kReceiving)
      ledger_.Transfer(transfer::CloseLease{.lease = leg.lease, .reason = reason});
  } else {
    scheduler_.Release(leg.sequence);
  }
  legs_.erase(it);
}

// ---- the KV plane --------------------------------------------------------------------------

void DecodeCore::OnTransfer(const transfer::TransferEvent& event, absl::Time now) {
  std::visit([&](const auto& e) { Handle(e, now); }, event);
}

// The sender of an older epoch may have delivered everything just before the new epoch was
// announced. That is just as good, because the tokens alone decide the blocks' contents.
void DecodeCore::Handle(const transfer::LeaseInstalled& event, absl::Time now) {
  if (resources_.Handle(event)) return EndFetching(event.lease, &event, now);
  const auto found = by_lease_.find(event.lease);
  if (found == by_lease_.end()) return;  // being closed: LeaseDrained follows
  const Legs::iterator it = found->second;
  Leg& leg = it->second;
  if (leg.phase == Phase::kClosing) return;  // likewise
  const v1::GeneratedToken& first = event.first_token;
  if (first.index() != leg.output_tokens || first.token_id() < 0 ||
      first.token_id() >= scheduler_.spec().vocab_size) {
    ledger_.FailLeg(it->first.router, leg.wire,
                    absl::DataLossError(absl::StrCat(
                        "lease ", event.lease.value(), ": FIN carries token ", first.token_id(),
                        " at index ", first.index(), ", expected a token in [0, ",
                        scheduler_.spec().vocab_size, ") at index ", leg.output_tokens)),
                    /*sender_side=*/false, leg.trace_id);
    return End(it, "first token out of range");
  }
  by_lease_.erase(found);
  if (leg.lent_units > 0 &&
      !resources_.borrower().TakeOver(leg.sequence, leg.lent_units, event.loans, now)) {
    leg.phase = Phase::kComputing;
    return scheduler_.ScheduleAfresh(leg.sequence);
  }
  leg.phase = Phase::kGenerating;
  const node::Sequence& sequence = scheduler_.Get(leg.sequence);
  scheduler_.MarkReceived(leg.sequence, sequence.prompt_tokens);
  SendInstalled(*it, sequence.PromptSources(sequence.prompt_tokens - sequence.cached_tokens),
                &event);
  ledger_.counters().set_kv_bytes_received(ledger_.counters().kv_bytes_received() +
                                           event.bytes_received);
  const auto reason = OnAppended(leg, scheduler_.AppendToken(leg.sequence, first.token_id()));
  if (!reason.ok()) return FailRequestAndEnd(it, reason.status(), "constraint");
  if (*reason != request::FinishReason::kNone) Finish(it, *reason);
}

void DecodeCore::Handle(const transfer::LeaseFailed& event, absl::Time now) {
  if (resources_.Handle(event)) return EndFetching(event.lease, nullptr, now);
  const auto found = by_lease_.find(event.lease);
  if (found == by_lease_.end()) return;
  if (found->second->second.phase == Phase::kClosing) return;
  // The lease was never opened: no sender is to blame, and another one could not fill it.
  if (absl::IsResourceExhausted(event.status))
    return FailAndEnd(found->second, event.status, "the lease was refused");
  if (event.epoch != found->second->second.epoch) return;
  v1::NodeEvent failed = node::FailedEvent(found->second->second.wire, event.status,
                                           /*sender_side=*/true);
  failed.mutable_leg_failed()->set_epoch(event.epoch.value());
  ledger_.Send(found->second->first.router, std::move(failed));
}

// What was verified stays, whether another sender sends the rest or this node computes it.
void DecodeCore::Handle(const transfer::EpochRaised& event, absl::Time) {
  const auto found = by_lease_.find(event.lease);
  if (found == by_lease_.end() || event.epoch != found->second->second.epoch) return;
  const Legs::iterator it = found->second;
  Leg& leg = it->second;
  const node::Sequence& sequence = scheduler_.Get(leg.sequence);
  const int64_t block_tokens = scheduler_.spec().layout.block_tokens;
  // Whole blocks, and at least the last token is left: its row gives the first token.
  const int64_t whole = std::min(leg.first_ordinal + event.verified_blocks,
                                 (sequence.prompt_tokens - 1) / block_tokens) *
                        block_tokens;
  leg.received_tokens = std::max<int64_t>(0, whole - sequence.cached_tokens);
  // KV carries no log-probabilities: the node that computes prompt tokens scores them.
  const bool scored = sequence.unscored() > 0;
  if (scored || leg.lent_units > 0) leg.received_tokens = 0;
  const int64_t continued = ContinuesReceived() ? leg.received_tokens : 0;
  const int64_t missing = sequence.prompt_tokens - sequence.cached_tokens - continued;
  const bool local =
      leg.local_prefill_tokens_max == -1 || (!scored && missing <= leg.local_prefill_tokens_max);
  if (local) leg.received_tokens = continued;
  v1::NodeEvent answer;
  v1::Reserved& reserved = *answer.mutable_reserved();
  *reserved.mutable_leg() = leg.wire;
  reserved.set_lease_id(leg.lease.value());
  reserved.set_epoch(leg.epoch.value());
  reserved.set_cached_tokens(static_cast<int32_t>(sequence.cached_tokens));
  reserved.set_received_tokens(static_cast<int32_t>(leg.received_tokens));
  reserved.set_computes_locally(local);
  reserved.set_lent_units(local ? 0 : leg.lent_units);
  ledger_.Send(it->first.router, std::move(answer));
  if (!local) return;
  leg.phase = Phase::kClosing;
  ledger_.Transfer(
      transfer::CloseLease{.lease = leg.lease, .reason = "the rest is computed by the receiver"});
}

void DecodeCore::Handle(const transfer::LeaseDrained& event, absl::Time) {
  if (const auto closing = by_lease_.find(event.lease); closing != by_lease_.end()) {
    Leg& leg = closing->second->second;
    by_lease_.erase(closing);
    leg.phase = Phase::kComputing;
    if (!ContinuesReceived() || leg.lent_units > 0) return scheduler_.ScheduleAfresh(leg.sequence);
    return scheduler_.MarkReceived(
        leg.sequence, scheduler_.Get(leg.sequence).cached_tokens + leg.received_tokens);
  }
  resources_.Handle(event);
  const auto found = draining_leases_.find(event.lease);
  if (found == draining_leases_.end()) return;
  if (!TANDEM_MUTATED(kReleaseLost)) scheduler_.EndQuarantine(found->second);
  draining_leases_.erase(found);
}

// ---- generating ----------------------------------------------------------------------------

absl::Span<const engine::SequenceSlice> DecodeCore::PlanStep(absl::Time now) {
  FollowConstraints();
  node::Borrower& borrower = resources_.borrower();
  borrower.BeforeStep(now);
  const absl::Span<const engine::SequenceSlice> slices = resources_.PlanStep(now);
  borrower.AfterPlan(!slices.empty() || preparing() || AwaitsBlocks(), now);
  return slices;
}

void DecodeCore::OnStepDone(const absl::StatusOr<std::vector<engine::SampledToken>>& result,
                            absl::Time now) {
  const node::StepResult& step = resources_.FinishStep(result, now);
  std::vector<std::pair<Legs::iterator, request::FinishReason>> finished;
  ledger_.ExpectTokens(static_cast<int>(step.outcomes.size()));
  for (const node::StepOutcome& outcome : step.outcomes) {
    const auto found = by_sequence_.find(outcome.id);
    TANDEM_CHECK(found != by_sequence_.end(), "sequence ", outcome.id.value(), " has no leg");
    const Legs::iterator it = found->second;
    Leg& leg = it->second;
    if (outcome.request_at_fault) {
      FailRequestAndEnd(it, outcome.status, "no token to choose");
      continue;
    }
    if (!outcome.status.ok()) {
      FailAndEnd(it, outcome.status, "step failed");
      continue;
    }
    if (!outcome.prompt_scores.empty()) ledger_.SendScores(it->first.router, leg.wire, outcome);
    if (!outcome.sampled) continue;
    if (migration_until_.has_value() && scheduler_.Get(leg.sequence).borrows()) {
      GiveUpForDrain(it);
      continue;
    }
    if (migration_until_.has_value()) {
      Retain(it, outcome.token);
      continue;
    }
    if (leg.phase == Phase::kComputing) {
      leg.phase = Phase::kGenerating;
      const node::Sequence& sequence = scheduler_.Get(leg.sequence);
      SendInstalled(*it, sequence.PromptSources(leg.received_tokens), nullptr);
    }
    ledger_.AddToken(it->first.router, leg.wire, outcome.token, leg.output_tokens);
    ledger_.counters().set_generated_tokens(ledger_.counters().generated_tokens() + 1);
    const auto reason = OnAppended(leg, scheduler_.AppendSampled(outcome));
    if (!reason.ok()) {
      FailRequestAndEnd(it, reason.status(), "constraint");
    } else if (*reason != request::FinishReason::kNone) {
      finished.emplace_back(it, *reason);
    }
  }
  ledger_.SendTokens();
  for (const auto& [it, reason] : finished) Finish(it, reason);
}

void DecodeCore::SendInstalled(const Legs::value_type& leg, const v1::TokensBySource& tokens,
                               const transfer::LeaseInstalled* received) {
  ledger_.CountPrompt(tokens);
  v1::NodeEvent event;
  v1::Installed& installed = *event.mutable_installed();
  *installed.mutable_leg() = leg.second.wire;
  *installed.mutable_tokens() = tokens;
  if (received != nullptr) {
    installed.set_kv_bytes_received(received->bytes_received);
    installed.set_kv_transfer_ms(absl::ToDoubleMilliseconds(received->transfer_time));
    installed.set_kv_receive_ms(absl::ToDoubleMilliseconds(received->receive_time));
    installed.set_kv_hidden_ms(absl::ToDoubleMilliseconds(received->hidden_time));
    installed.set_kv_beyond_ms(absl::ToDoubleMilliseconds(received->beyond_time));
    installed.set_transport(received->transport);
    *installed.mutable_first_token() = received->first_token;
    *installed.mutable_prefill_tokens() = received->tokens;
  }
  ledger_.Send(leg.first.router, std::move(event));
}

void DecodeCore::FailAndEnd(Legs::iterator it, const absl::Status& status,
                            const std::string& reason) {
  ledger_.FailLeg(it->first.router, it->second.wire, status, /*sender_side=*/false,
                  it->second.trace_id);
  End(it, reason);
}

void DecodeCore::FailRequestAndEnd(Legs::iterator leg, const absl::Status& status,
                                   const std::string& reason) {
  ledger_.FailRequest(leg->first.router, leg->second.wire, status, leg->second.trace_id);
  End(leg, reason);
}

void DecodeCore::Finish(Legs::iterator it, request::FinishReason reason, const std::string& why) {
  v1::NodeEvent event;
  v1::LegFinished& finished = *event.mutable_leg_finished();
  *finished.mutable_leg() = it->second.wire;
  finished.set_reason(rpc::ToWire(reason));
  finished.set_output_tokens(it->second.output_tokens);
  AddLentUse(it->second, finished);
  ledger_.Send(it->first.router, std::move(event));
  End(it, why);
}

}  // namespace tandem::decode_node
