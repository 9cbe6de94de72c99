// Prefill: takes a prompt on, announces the export and pushes what the prefix cache already holds.
#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "prefill_node/prefill_core.h"

namespace tandem::prefill_node {

void PrefillCore::Prefill(node::RouterKey router, const v1::Prefill& command, absl::Time now) {
  const node::LegKey key(router, command.leg());
  if (const auto old = legs_.find(key); old != legs_.end()) {
    const Export& running = old->second->second;
    if (std::tuple(command.leg().attempt(), command.epoch()) <=
        std::tuple(running.wire.attempt(), running.epoch.value())) {
      return;
    }
    Abandon(old->second, "replaced by a newer attempt");
  }
  const auto refuse = [&](const absl::Status& status) {
    ledger_.Refuse(router, command.leg(), status, command.trace_id());
  };
  if (ledger_.draining()) return refuse(absl::UnavailableError("draining"));
  const auto time_allowed = node::ParseDeadline(command.deadline_s());
  if (!time_allowed.ok()) return refuse(time_allowed.status());
  auto input = node::ParseSequence(command.sequence(), command.leg().sequence_index(),
                                   scheduler_.spec(), scheduler_.constraints());
  if (!input.ok()) return refuse(input.status());
  const int64_t blocks =
      scheduler_.spec().layout.BlocksFor(static_cast<int64_t>(input->prompt.size()));
  if (command.first_ordinal() < 0 || command.first_ordinal() >= blocks) {
    return refuse(absl::InvalidArgumentError(absl::StrCat(
        "first_ordinal: ", command.first_ordinal(), ", expected one in [0, ", blocks, ")")));
  }
  const auto sequence = scheduler_.Admit(*std::move(input), /*generates=*/false);
  if (!sequence.ok()) return refuse(sequence.status());

  Export exported{.owner = key,
                  .wire = command.leg(),
                  .trace_id = command.trace_id(),
                  .epoch = Epoch(command.epoch()),
                  .sequence = *sequence,
                  .first_ordinal = command.first_ordinal(),
                  .time_allowed = *time_allowed,
                  .deadline = now + *time_allowed};
  const auto it = exports_.emplace(ledger_.NewExport(), std::move(exported)).first;
  legs_.emplace(key, it);
  by_sequence_.emplace(*sequence, it);
  ledger_.LegTaken(command.leg(), command.trace_id());
  ledger_.counters().set_requests(ledger_.counters().requests() + 1);
  scheduler_.Schedule(*sequence);
  Open(it, command);
}

void PrefillCore::Open(Exports::iterator it, const v1::Prefill& command) {
  const Export& exported = it->second;
  const node::Sequence& sequence = scheduler_.Get(exported.sequence);
  ledger_.Transfer(transfer::OpenExport{
      .export_id = it->first,
      .peer = {.node = NodeId(command.receiver_node_id()),
               .incarnation = Incarnation(command.receiver_incarnation()),
               .transport_address = command.receiver_address(),
               .host = command.receiver_host()},
      .lease = LeaseId(command.lease_id()),
      .epoch = exported.epoch,
      .first_ordinal = command.first_ordinal(),
      .blocks = {sequence.blocks.begin() + exported.first_ordinal, sequence.blocks.end()},
      .deadline = exported.deadline});
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  const int64_t cached = sequence.cached_tokens / layout.block_tokens;
  if (cached > exported.first_ordinal) {
    ledger_.Transfer(
        transfer::PushRange{.export_id = it->first,
                            .first_ordinal = static_cast<int32_t>(exported.first_ordinal),
                            .ordinal_count = static_cast<int32_t>(cached - exported.first_ordinal),
                            .first_layer = 0,
                            .layer_count = layout.num_layers});
  }
}

}  // namespace tandem::prefill_node
