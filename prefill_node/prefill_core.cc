#include "prefill_node/prefill_core.h"

#include <algorithm>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutation.h"
#include "common/base/status_macros.h"
#include "common/node/lent_units.h"
#include "common/node/receiver_of.h"
#include "common/node/sequence.h"
#include "common/request/split_prompt.h"

namespace tandem::prefill_node {

// ---- commands ------------------------------------------------------------------------------

void PrefillCore::OnCommand(node::RouterKey router, const v1::NodeCommand& command,
                            absl::Time now) {
  switch (command.command_case()) {
    case v1::NodeCommand::kPrefill:
      return Prefill(router, command.prefill(), now, now);
    case v1::NodeCommand::kAbort:
      return Abort(router, command.abort());
    case v1::NodeCommand::kStartDecode:
      return ledger_.Refuse(router, command.start_decode().leg(),
                            absl::InvalidArgumentError(
                                "StartDecode: sent to a prefill node, expected a decode node"));
    case v1::NodeCommand::kNewEpoch:
      return ledger_.FailLeg(
          router, command.new_epoch().leg(),
          absl::InvalidArgumentError("NewEpoch: sent to a prefill node, expected a decode node"),
          /*sender_side=*/true);
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

void PrefillCore::Resubmit(const node::StoredBlocks::Ready& ready, absl::Time now) {
  if (!ready.command.has_prefill()) return resources_.Resubmit(ready, now);
  Prefill(ready.router, ready.command.prefill(), ready.arrived, now);
}

void PrefillCore::Prefill(node::RouterKey router, const v1::Prefill& command, absl::Time arrived,
                          absl::Time now) {
  const node::LegKey key(router, command.leg());
  if (const auto old = legs_.find(key); old != legs_.end()) {
    const Export& running = old->second->second;
    if (std::tuple(command.leg().attempt(), command.epoch()) <=
        std::tuple(running.wire.attempt(), running.epoch.value())) {
      return;
    }
    Abandon(old->second, "replaced by a newer attempt");
  }
  auto prompt = intake_.Take(
      router, command, arrived, now,
      [this](node::RouterKey, const v1::Prefill& parsed) { return ParsePrompt(parsed); });
  if (prompt.has_value()) Begin(router, command, *prompt);
}

absl::StatusOr<node::SequenceInput> PrefillCore::ParsePrompt(const v1::Prefill& command) const {
  ASSIGN_OR_RETURN(node::SequenceInput input,
                   node::ParseSequence(command.sequence(), command.leg().sequence_index(),
                                       scheduler_.spec(), scheduler_.constraints()));
  RETURN_IF_ERROR(CheckBlocks(command, std::ssize(input.prompt)));
  input.first_token_within = node::ParseFirstTokenDue(command.first_token_due_us());
  if (command.lent_units() <= 0) return input;
  input.split_units = command.lent_units();
  input.split_receiver = command.receiver_node_id();
  input.borrow_blocks_max = std::max<int64_t>(command.borrow_blocks_max(), 0);
  input.arrived_us = command.arrived_us();
  return input;
}

int64_t PrefillCore::FirstOrdinal(const v1::Prefill& command) const {
  const engine::EngineSpec& spec = scheduler_.spec();
  if (command.lent_units() <= 0) return command.first_ordinal();
  return int64_t{command.lent_units()} * spec.unit_tokens / spec.layout.block_tokens;
}

absl::Status PrefillCore::CheckBlocks(const v1::Prefill& command, int64_t prompt_tokens) const {
  const engine::EngineSpec& spec = scheduler_.spec();
  const int64_t blocks = spec.layout.BlocksFor(prompt_tokens);
  const int64_t first = FirstOrdinal(command);
  if (command.lent_units() <= 0) {
    if (first >= 0 && first < blocks) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("first_ordinal: ", first, ", expected one in [0, ", blocks, ")"));
  }
  const int64_t needed_here = std::max(1, spec.window_tokens);
  const int64_t lendable = spec.unit_tokens == 0 || command.sequence().has_prompt_logprobs()
                               ? 0
                               : (prompt_tokens - needed_here) / spec.unit_tokens;
  if (command.lent_units() > lendable) {
    return absl::InvalidArgumentError(absl::StrCat("lent_units: ", command.lent_units(),
                                                   ", expected at most ",
                                                   std::max<int64_t>(lendable, 0)));
  }
  const int64_t pool = scheduler_.block_counts().total;
  if (!request::CanComputeSplit(blocks, first, pool)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "lent_units: ", command.lent_units(), " leave ", blocks - first,
        " blocks of the prompt here, expected at most ", request::SplitBlocksMax(pool, true)));
  }
  return absl::OkStatus();
}

void PrefillCore::EndFetching(LeaseId lease, const transfer::LeaseInstalled* installed,
                              absl::Time now) {
  auto prompt = intake_.TakeFetched<v1::Prefill>(
      lease, installed, now,
      [this](node::RouterKey, const v1::Prefill& parsed) { return ParsePrompt(parsed); });
  if (!prompt.has_value()) return;
  Begin(prompt->waited->leg.router, prompt->waited->command.prefill(), *prompt);
}

void PrefillCore::Begin(node::RouterKey router, const v1::Prefill& command,
                        node::PromptIntake::Prompt& prompt) {
  const auto sequence = scheduler_.Admit(std::move(prompt.input), /*generates=*/false);
  if (!sequence.ok()) {
    return ledger_.Refuse(router, command.leg(), sequence.status(), command.trace_id());
  }
  const node::LegKey key(router, command.leg());
  Export exported{.owner = key,
                  .wire = command.leg(),
                  .trace_id = command.trace_id(),
                  .epoch = Epoch(command.epoch()),
                  .sequence = *sequence,
                  .first_ordinal = FirstOrdinal(command),
                  .time_allowed = prompt.time_allowed,
                  .deadline = prompt.deadline,
                  .receiver = node::ReceiverOf(command),
                  .lease = LeaseId(command.lease_id()),
                  .lent_units = std::max(0, command.lent_units()),
                  .fetch_declined = command.fetch_blocks() > 0 && !prompt.waited.has_value(),
                  .fetched = prompt.waited.has_value() ? prompt.waited->fetched : std::nullopt,
                  .wait = resources_.borrower().BeginWait(prompt.deadline - prompt.time_allowed)};
  const auto it = exports_.emplace(ledger_.NewExport(), std::move(exported)).first;
  legs_.emplace(key, it);
  by_sequence_.emplace(*sequence, it);
  ledger_.LegTaken(command.leg(), command.trace_id());
  ledger_.counters().set_requests(ledger_.counters().requests() + 1);
  scheduler_.Schedule(*sequence);
  OpenIfPossible(it);
}

void PrefillCore::OpenIfPossible(Exports::iterator it) {
  Export& exported = it->second;
  const node::Sequence& sequence = scheduler_.Get(exported.sequence);
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  if (std::ssize(sequence.blocks) < layout.BlocksFor(sequence.prompt_tokens)) return;
  exported.opened = true;
  ledger_.Transfer(transfer::OpenExport{
      .export_id = it->first,
      .peer = exported.receiver,
      .lease = exported.lease,
      .epoch = exported.epoch,
      .first_ordinal = static_cast<int32_t>(exported.first_ordinal),
      .blocks = {sequence.blocks.begin() + exported.first_ordinal, sequence.blocks.end()},
      .deadline = exported.deadline,
      .window_first_ordinal = layout.FirstInWindow(sequence.prompt_tokens)});
  const int64_t computed = sequence.num_computed / layout.block_tokens;
  if (computed > exported.first_ordinal) {
    const int64_t count = computed - exported.first_ordinal;
    ledger_.Transfer(
        transfer::PushRange{.export_id = it->first,
                            .first_ordinal = static_cast<int32_t>(exported.first_ordinal),
                            .ordinal_count = static_cast<int32_t>(count),
                            .first_layer = 0,
                            .layer_count = layout.num_layers});
  }
}

// Ends a leg in whatever phase it is; ignores unknown legs and older attempts.
void PrefillCore::Abort(node::RouterKey router, const v1::AbortLeg& command) {
  const node::LegKey key(router, command.leg());
  intake_.Drop(key, command.leg().attempt() + 1);
  const auto found = legs_.find(key);
  if (found == legs_.end() || command.leg().attempt() < found->second->second.wire.attempt()) {
    return;
  }
  Abandon(found->second, command.reason());
}

// ---- deadlines, drains, ends of legs -------------------------------------------------------

void PrefillCore::OnRouterLost(node::RouterKey router, absl::Time) {
  resources_.OnRouterLost(router);
  for (auto it = legs_.begin(); it != legs_.end();) {
    const auto leg = it++;
    if (leg->first.router == router) Abandon(leg->second, "router lost");
  }
}

void PrefillCore::OnTick(absl::Time now) {
  for (const node::StoredBlocks::Ready& ready : resources_.OnTick(now)) Resubmit(ready, now);
  for (auto it = legs_.begin(); it != legs_.end();) {
    const auto leg = it++;
    Export& exported = leg->second->second;
    if (IsStalled(exported, now)) {
      Fail(leg->second,
           absl::ResourceExhaustedError("no node lends what this prompt's decode node cannot hold"),
           /*lease_stands=*/true);
      continue;
    }
    if (exported.deadline > now) continue;
    Fail(leg->second,
         absl::DeadlineExceededError(absl::StrCat("the prompt's KV was not delivered within ",
                                                  absl::FormatDuration(exported.time_allowed))),
         /*lease_stands=*/true);
  }
}

void PrefillCore::Fail(Exports::iterator it, const absl::Status& status, bool lease_stands) {
  ledger_.FailLeg(it->second.owner->router, it->second.wire, status, lease_stands,
                  it->second.trace_id);
  Abandon(it, std::string(status.message()));
}

void PrefillCore::FailRequest(Exports::iterator it, const absl::Status& status) {
  ledger_.FailRequest(it->second.owner->router, it->second.wire, status, it->second.trace_id);
  Abandon(it, std::string(status.message()));
}

void PrefillCore::Abandon(Exports::iterator it, const std::string& reason) {
  TANDEM_CHECK(it->second.owner.has_value(), "export ", it->first.value(), " abandoned twice");
  legs_.erase(*it->second.owner);
  it->second.owner.reset();
  scheduler_.Park(it->second.sequence);
  if (!it->second.opened) return EndExport(it);
  ledger_.Transfer(transfer::CancelExport{.export_id = it->first, .reason = reason});
}

// ---- the KV plane --------------------------------------------------------------------------

void PrefillCore::OnTransfer(const transfer::TransferEvent& event, absl::Time now) {
  std::visit([&](const auto& e) { Handle(e, now); }, event);
}

void PrefillCore::Handle(const transfer::ExportDone& event, absl::Time) {
  resources_.Handle(event);
  const auto it = exports_.find(event.export_id);
  if (it == exports_.end()) return;
  ledger_.counters().set_kv_bytes_sent(ledger_.counters().kv_bytes_sent() + event.bytes_sent);
  EndExport(it);
}

void PrefillCore::Handle(const transfer::ExportFailed& event, absl::Time now) {
  resources_.Handle(event, now);
  const auto it = exports_.find(event.export_id);
  if (it == exports_.end()) return;
  if (it->second.owner.has_value()) {
    ledger_.FailLeg(it->second.owner->router, it->second.wire, event.status,
                    /*sender_side=*/true, it->second.trace_id);
  }
  EndExport(it);
}

// No send is in flight: the blocks may be reused.
void PrefillCore::EndExport(Exports::iterator it) {
  if (it->second.owner.has_value()) legs_.erase(*it->second.owner);
  by_sequence_.erase(it->second.sequence);
  scheduler_.Release(it->second.sequence);
  exports_.erase(it);
}

// ---- computing -----------------------------------------------------------------------------

absl::Span<const engine::SequenceSlice> PrefillCore::PlanStep(absl::Time now) {
  // A constraint may not fit the tokens that it has to read before the first one. If these complete
  // the answer, the prompt sits out steps until its router aborts it: the decode node ends the leg.
  for (const node::ConstraintTurns::Settled& settled : scheduler_.FollowConstraints()) {
    if (settled.progress.ok()) continue;
    FailRequest(by_sequence_.at(settled.id), settled.progress.status());
  }
  resources_.borrower().BeforeStep(now);
  FailSplitsLost();
  FinishLent();
  const absl::Span<const engine::SequenceSlice> slices = resources_.PlanStep(now);
  PlanPushes();
  return slices;
}

void PrefillCore::FailSplitsLost() {
  for (const SequenceId id : scheduler_.TakeSplitsLost()) {
    const auto found = by_sequence_.find(id);
    if (found == by_sequence_.end() || !found->second->second.owner.has_value()) continue;
    // Rows of a step that lacked an answer may have been sent.
    const bool sent = found->second->second.opened;
    Fail(
        found->second,
        absl::UnavailableError("no node keeps the prompt's beginning: none lends, or one was lost"),
        /*lease_stands=*/!sent);
  }
}

void PrefillCore::FinishLent() {
  std::erase_if(unfinished_, [this](ExportId id) {
    const auto it = exports_.find(id);
    if (it == exports_.end() || !it->second.owner.has_value()) return true;
    if (scheduler_.Get(it->second.sequence).lent_units() < it->second.lent_units) return false;
    SendFin(it);
    return true;
  });
}

bool PrefillCore::IsStalled(Export& exported, absl::Time now) const {
  if (exported.lent_units == 0) return false;
  const node::Sequence& sequence = scheduler_.Get(exported.sequence);
  const std::pair progress(sequence.num_computed, sequence.lent_units());
  const bool waits =
      sequence.phase == node::SequencePhase::kRunning &&
      (sequence.remaining() == 0 || node::RowsHeld(sequence, scheduler_.spec()) <= 0);
  if (!waits || progress != exported.progress) {
    exported.progress = progress;
    exported.wait = resources_.borrower().BeginWait(now);
  }
  return resources_.borrower().IsTooLong(exported.wait, kStalledMax, now);
}

// A block is complete when its last row is computed; the prompt's last block when the prompt is.
void PrefillCore::PlanPushes() {
  pushes_.clear();
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  for (const node::PlannedSlice& slice : scheduler_.planned()) {
    const auto it = by_sequence_.at(slice.id);
    if (!it->second.opened) OpenIfPossible(it);
    if (!it->second.opened) continue;
    const int64_t end = slice.first_row + slice.num_rows;
    const int64_t first = std::max(slice.first_row / layout.block_tokens, it->second.first_ordinal);
    const int64_t last = slice.sample ? layout.BlocksFor(end) : end / layout.block_tokens;
    if (first >= last) continue;
    pushes_.push_back({.export_id = it->first,
                       .first_ordinal = static_cast<int32_t>(first),
                       .ordinal_count = static_cast<int32_t>(last - first)});
  }
}

void PrefillCore::OnLayerDone(int layer) {
  for (const Push& push : pushes_) {
    const auto it = exports_.find(push.export_id);
    if (it == exports_.end() || !it->second.owner.has_value()) continue;
    ledger_.Transfer(transfer::PushRange{.export_id = push.export_id,
                                         .first_ordinal = push.first_ordinal,
                                         .ordinal_count = push.ordinal_count,
                                         .first_layer = layer,
                                         .layer_count = 1});
  }
}

void PrefillCore::OnStepDone(const absl::StatusOr<std::vector<engine::SampledToken>>& result,
                             absl::Time now) {
  const node::StepResult& step = resources_.FinishStep(result, now);
  pushes_.clear();
  std::vector<std::pair<node::RouterKey, v1::NodeEvent>> finished;
  for (const node::StepOutcome& outcome : step.outcomes) {
    const auto found = by_sequence_.find(outcome.id);
    TANDEM_CHECK(found != by_sequence_.end(), "sequence ", outcome.id.value(), " has no export");
    if (outcome.request_at_fault) {
      FailRequest(found->second, outcome.status);
      continue;
    }
    if (!outcome.status.ok()) {
      // Layers of the failed step were already sent: what the receiver verified may be wrong.
      Fail(found->second, outcome.status, /*lease_stands=*/false);
      continue;
    }
    const Export& exported = found->second->second;
    ledger_.SendScores(exported.owner->router, exported.wire, outcome);
    if (outcome.sampled) {
      const Exports::iterator it = found->second;
      finished.push_back(Finish(it, outcome.token));
      if (TANDEM_MUTATED(kExportUnpinnedEarly)) EndExport(it);
    }
  }
  ledger_.SendTokens();
  for (auto& [router, event] : finished) ledger_.Send(router, std::move(event));
}

// The whole prompt is computed and its last blocks are being sent.
std::pair<node::RouterKey, v1::NodeEvent> PrefillCore::Finish(Exports::iterator it,
                                                              const engine::SampledToken& token) {
  Export& exported = it->second;
  const node::RouterKey router = exported.owner->router;
  const node::Sequence& sequence = scheduler_.Get(exported.sequence);
  exported.first_token = node::ToWire(token, sequence.input.delivered_tokens);
  ledger_.AddToken(router, exported.wire, token, sequence.input.delivered_tokens);
  ledger_.counters().set_generated_tokens(ledger_.counters().generated_tokens() + 1);
  v1::NodeEvent event;
  v1::PrefillFinished& finished = *event.mutable_prefill_finished();
  *finished.mutable_leg() = exported.wire;
  *finished.mutable_tokens() = sequence.PromptSources();
  finished.set_fetch_declined(exported.fetch_declined);
  if (exported.fetched.has_value()) *finished.mutable_fetched() = *exported.fetched;
  ledger_.CountPrompt(finished.tokens());
  if (sequence.lent_units() < exported.lent_units)
    unfinished_.push_back(it->first);
  else
    SendFin(it);
  return {router, std::move(event)};
}

void PrefillCore::SendFin(Exports::iterator it) {
  const node::Sequence& sequence = scheduler_.Get(it->second.sequence);
  ledger_.Transfer(transfer::FinishExport{.export_id = it->first,
                                          .first_token = *it->second.first_token,
                                          .tokens = sequence.PromptSources(),
                                          .loans = resources_.borrower().NameLoans(sequence)});
  scheduler_.Park(it->second.sequence);
}

v1::NodeLoad PrefillCore::load() const {
  v1::NodeLoad load = resources_.load();
  load.set_exports(load.exports() + static_cast<int64_t>(exports_.size()));
  return load;
}

}  // namespace tandem::prefill_node
