#include "decode_node/retained_sequences.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutation.h"
#include "common/node/receiver_of.h"

namespace tandem::decode_node {

void RetainedSequences::Retain(Entry entry) {
  TANDEM_CHECK(scheduler_.Get(entry.sequence).remaining() == 0, "sequence ", entry.sequence.value(),
               " is retained before all of it is computed");
  scheduler_.Park(entry.sequence);
  v1::NodeEvent event = node::FailedEvent(
      entry.leg, absl::UnavailableError("this node is draining: continue the sequence elsewhere"),
      /*sender_side=*/false);
  event.mutable_leg_failed()->set_retained(true);
  ledger_.Send(entry.key.router, std::move(event));
  retained_.insert_or_assign(entry.key, std::move(entry));
}

void RetainedSequences::Drop(Retained::iterator it) {
  scheduler_.Release(it->second.sequence);
  retained_.erase(it);
}

absl::Status RetainedSequences::Check(const Entry& retained, const v1::Prefill& command) const {
  const node::Sequence& sequence = scheduler_.Get(retained.sequence);
  const v1::SequenceSpec& asked = command.sequence();
  if (!std::equal(asked.prompt().begin(), asked.prompt().end(), sequence.tokens.begin(),
                  sequence.tokens.end()) ||
      asked.cache_salt() != sequence.input.cache_salt) {
    return absl::FailedPreconditionError(
        absl::StrCat("prompt: ", asked.prompt_size(), " tokens, expected the same ",
                     sequence.tokens.size(), " tokens whose KV this node retains"));
  }
  const int64_t blocks = scheduler_.spec().layout.BlocksFor(asked.prompt_size());
  if (command.first_ordinal() < 0 || command.first_ordinal() >= blocks) {
    return absl::InvalidArgumentError(absl::StrCat("first_ordinal: ", command.first_ordinal(),
                                                   ", expected one in [0, ", blocks, ")"));
  }
  return absl::OkStatus();
}

void RetainedSequences::Send(node::RouterKey router, const v1::Prefill& command, absl::Time now) {
  const auto found = retained_.find(node::LegKey(router, command.leg()));
  if (found == retained_.end()) {
    return ledger_.Refuse(router, command.leg(),
                          absl::UnavailableError("Prefill: this node does not retain the sequence"),
                          command.trace_id());
  }
  const auto time_allowed = node::ParseDeadline(command.deadline_s());
  const absl::Status status =
      time_allowed.ok() ? Check(found->second, command) : time_allowed.status();
  if (!status.ok()) {
    Drop(found);
    return ledger_.Refuse(router, command.leg(), status, command.trace_id());
  }
  Push(found->second, command, now + *time_allowed);
  retained_.erase(found);
}

// Pushes all blocks at once, because nothing is left to compute.
void RetainedSequences::Push(const Entry& retained, const v1::Prefill& command,
                             absl::Time deadline) {
  const node::Sequence& sequence = scheduler_.Get(retained.sequence);
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  const int32_t first = command.first_ordinal();
  const auto end = static_cast<int32_t>(layout.BlocksFor(command.sequence().prompt_size()));
  const transfer::ExportId id = ledger_.NewExport();
  exports_.emplace(id, Export{.key = retained.key,
                              .leg = command.leg(),
                              .trace_id = command.trace_id(),
                              .sequence = retained.sequence});
  ledger_.Transfer(transfer::OpenExport{
      .export_id = id,
      .peer = node::ReceiverOf(command),
      .lease = LeaseId(command.lease_id()),
      .epoch = Epoch(command.epoch()),
      .first_ordinal = first,
      .blocks = {sequence.blocks.begin() + first, sequence.blocks.begin() + end},
      .deadline = deadline,
      .window_first_ordinal = layout.FirstInWindow(command.sequence().prompt_size())});
  ledger_.Transfer(transfer::PushRange{.export_id = id,
                                       .first_ordinal = first,
                                       .ordinal_count = end - first,
                                       .first_layer = 0,
                                       .layer_count = layout.num_layers});
  v1::GeneratedToken next = node::ToWire(retained.next, command.sequence().delivered_tokens());
  if (TANDEM_MUTATED(kMovedTokenRepeated)) next.set_token_id(sequence.tokens.back());
  v1::TokensBySource tokens;
  tokens.set_cached(command.sequence().prompt_size());
  ledger_.Transfer(transfer::FinishExport{.export_id = id, .first_token = next, .tokens = tokens});
  ledger_.counters().set_generated_tokens(ledger_.counters().generated_tokens() + 1);
  v1::NodeEvent first_token;
  node::AddToken(command.leg(), next, *first_token.mutable_tokens());
  ledger_.Send(retained.key.router, std::move(first_token));
  v1::NodeEvent event;
  *event.mutable_prefill_finished()->mutable_leg() = command.leg();
  *event.mutable_prefill_finished()->mutable_tokens() = tokens;
  ledger_.Send(retained.key.router, std::move(event));
}

void RetainedSequences::Abort(node::RouterKey router, const v1::AbortLeg& command) {
  const node::LegKey key(router, command.leg());
  if (const auto retained = retained_.find(key);
      retained != retained_.end() && command.leg().attempt() >= retained->second.leg.attempt())
    return Drop(retained);
  for (auto& exported : exports_) {
    const Export& sending = exported.second;
    if (sending.key < key || key < sending.key || sending.cancelled) continue;
    if (command.leg().attempt() >= sending.leg.attempt()) Cancel(exported, command.reason());
  }
}

void RetainedSequences::OnRouterLost(node::RouterKey router) {
  for (auto it = retained_.begin(); it != retained_.end();) {
    const auto retained = it++;
    if (retained->first.router == router) Drop(retained);
  }
  for (auto& exported : exports_)
    if (exported.second.key.router == router && !exported.second.cancelled)
      Cancel(exported, "router lost");
}

void RetainedSequences::OnTick(absl::Time now) {
  for (auto it = retained_.begin(); it != retained_.end();) {
    const auto retained = it++;
    if (retained->second.until <= now) Drop(retained);
  }
}

void RetainedSequences::Cancel(Exports::value_type& exported, const std::string& reason) {
  exported.second.cancelled = true;
  ledger_.Transfer(transfer::CancelExport{.export_id = exported.first, .reason = reason});
}

void RetainedSequences::Handle(const transfer::ExportDone& event) {
  const auto it = exports_.find(event.export_id);
  if (it == exports_.end()) return;
  ledger_.counters().set_kv_bytes_sent(ledger_.counters().kv_bytes_sent() + event.bytes_sent);
  if (!TANDEM_MUTATED(kSentKept)) scheduler_.Release(it->second.sequence);
  exports_.erase(it);
}

void RetainedSequences::Handle(const transfer::ExportFailed& event) {
  const auto it = exports_.find(event.export_id);
  if (it == exports_.end()) return;
  if (!it->second.cancelled)
    ledger_.FailLeg(it->second.key.router, it->second.leg, event.status, /*sender_side=*/true,
                    it->second.trace_id);
  scheduler_.Release(it->second.sequence);
  exports_.erase(it);
}

}  // namespace tandem::decode_node
