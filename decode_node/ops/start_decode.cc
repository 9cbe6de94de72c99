// StartDecode: reserves room for a sequence and has its prompt's KV delivered or computed.
#include <utility>

#include "absl/strings/str_cat.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {

void DecodeCore::StartDecode(node::RouterKey router, const v1::StartDecode& command,
                             absl::Time now) {
  const node::LegKey key(router, command.leg());
  if (const auto old = legs_.find(key); old != legs_.end()) {
    if (command.leg().attempt() <= old->second.wire.attempt()) return;
    End(old, "replaced by a newer attempt");
  }
  const auto refuse = [&](const absl::Status& status) {
    ledger_.Refuse(router, command.leg(), status, command.trace_id());
  };
  if (ledger_.draining()) return refuse(absl::UnavailableError("draining"));
  if (command.local_prefill_tokens_max() < -1) {
    return refuse(absl::InvalidArgumentError(absl::StrCat(
        "local_prefill_tokens_max: ", command.local_prefill_tokens_max(), ", expected >= -1")));
  }
  const auto time_allowed = node::ParseDeadline(command.deadline_s());
  if (!time_allowed.ok()) return refuse(time_allowed.status());
  auto input = node::ParseSequence(command.sequence(), command.leg().sequence_index(),
                                   scheduler_.spec(), scheduler_.constraints());
  if (!input.ok()) return refuse(input.status());
  const auto sequence = scheduler_.Admit(*std::move(input), /*generates=*/true);
  if (!sequence.ok()) return refuse(sequence.status());

  Leg leg;
  leg.wire = command.leg();
  leg.trace_id = command.trace_id();
  leg.sequence = *sequence;
  leg.output_tokens = command.sequence().delivered_tokens();
  leg.time_allowed = *time_allowed;
  leg.deadline = now + *time_allowed;
  const auto it = legs_.emplace(key, std::move(leg)).first;
  by_sequence_.emplace(*sequence, it);
  ledger_.LegTaken(command.leg(), command.trace_id());
  ledger_.counters().set_requests(ledger_.counters().requests() + 1);
  Reserve(it, command.local_prefill_tokens_max());
}

// Decides who computes the rest of the prompt, and answers Reserved.
void DecodeCore::Reserve(Legs::iterator it, int64_t local_prefill_tokens_max) {
  Leg& leg = it->second;
  const node::Sequence& sequence = scheduler_.Get(leg.sequence);
  const int64_t uncached = sequence.prompt_tokens - sequence.cached_tokens;
  v1::NodeEvent event;
  v1::Reserved& reserved = *event.mutable_reserved();
  *reserved.mutable_leg() = leg.wire;
  reserved.set_cached_tokens(static_cast<int32_t>(sequence.cached_tokens));
  if (local_prefill_tokens_max == -1 || uncached <= local_prefill_tokens_max) {
    leg.phase = Phase::kComputing;
    scheduler_.Schedule(leg.sequence);
    reserved.set_computes_locally(true);
  } else {
    leg.phase = Phase::kReceiving;
    leg.lease = ledger_.NewLease();
    leg.epoch = Epoch(1);
    const kv::BlockLayout& layout = scheduler_.spec().layout;
    leg.first_ordinal = sequence.cached_tokens / layout.block_tokens;
    leg.lease_blocks = layout.BlocksFor(sequence.prompt_tokens) - leg.first_ordinal;
    by_lease_.emplace(leg.lease, it);
    const auto first = sequence.blocks.begin() + leg.first_ordinal;
    ledger_.Transfer(transfer::OpenLease{.lease = leg.lease,
                                         .epoch = leg.epoch,
                                         .first_ordinal = static_cast<int32_t>(leg.first_ordinal),
                                         .blocks = {first, first + leg.lease_blocks},
                                         .deadline = leg.deadline});
    reserved.set_lease_id(leg.lease.value());
    reserved.set_epoch(leg.epoch.value());
  }
  ledger_.Send(it->first.router, std::move(event));
}

}  // namespace tandem::decode_node
