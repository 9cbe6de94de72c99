// How a sequence begins on a decode node: implements StartDecode and what follows it, until
// Reserved, of DecodeCore (decode_node/decode_core.h).
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/node/sequence.h"
#include "decode_node/decode_core.h"

namespace tandem::decode_node {

void DecodeCore::Resubmit(const node::StoredBlocks::Ready& ready, absl::Time now) {
  if (!ready.command.has_start_decode()) return resources_.Resubmit(ready, now);
  StartDecode(ready.router, ready.command.start_decode(), ready.arrived, now);
}

void DecodeCore::StartDecode(node::RouterKey router, const v1::StartDecode& command,
                             absl::Time arrived, absl::Time now) {
  const node::LegKey key(router, command.leg());
  if (const auto old = legs_.find(key); old != legs_.end()) {
    if (command.leg().attempt() <= old->second.wire.attempt()) return;
    End(old, "replaced by a newer attempt");
  }
  auto prompt = intake_.Take(router, command, arrived, now,
                             [this](node::RouterKey from, const v1::StartDecode& parsed) {
                               return ParsePrompt(from, parsed);
                             });
  if (prompt.has_value()) Admit(router, command, *prompt);
}

absl::StatusOr<node::SequenceInput> DecodeCore::ParsePrompt(node::RouterKey router,
                                                            const v1::StartDecode& command) const {
  if (command.local_prefill_tokens_max() < -1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "local_prefill_tokens_max: ", command.local_prefill_tokens_max(), ", expected >= -1"));
  }
  ASSIGN_OR_RETURN(node::SequenceInput input,
                   node::ParseSequence(command.sequence(), command.leg().sequence_index(),
                                       scheduler_.spec(), scheduler_.constraints()));
  input.forks_follow = command.forks_follow();
  input.borrow_blocks_max = std::max<int64_t>(command.borrow_blocks_max(), 0);
  input.arrived_us = command.arrived_us();
  if (command.step_goal_us() > 0) input.step_goal = absl::Microseconds(command.step_goal_us());
  input.first_token_within = node::ParseFirstTokenDue(command.first_token_due_us());
  if (const std::string& request = command.leg().request_id(); !request.empty())
    input.group = absl::StrCat(router.value(), "/", request);
  return input;
}

void DecodeCore::EndFetching(LeaseId lease, const transfer::LeaseInstalled* installed,
                             absl::Time now) {
  auto prompt = intake_.TakeFetched<v1::StartDecode>(
      lease, installed, now, [this](node::RouterKey from, const v1::StartDecode& parsed) {
        return ParsePrompt(from, parsed);
      });
  if (!prompt.has_value()) return;
  Admit(prompt->waited->leg.router, prompt->waited->command.start_decode(), *prompt);
}

void DecodeCore::Admit(node::RouterKey router, const v1::StartDecode& command,
                       node::PromptIntake::Prompt& prompt) {
  const auto sequence = scheduler_.Admit(std::move(prompt.input), /*generates=*/true);
  if (!sequence.ok())
    return ledger_.Refuse(router, command.leg(), sequence.status(), command.trace_id());
  Leg leg;
  leg.wire = command.leg();
  leg.trace_id = command.trace_id();
  leg.sequence = *sequence;
  leg.output_tokens = command.sequence().delivered_tokens();
  leg.time_allowed = prompt.time_allowed;
  leg.deadline = prompt.deadline;
  const auto it = legs_.emplace(node::LegKey(router, command.leg()), std::move(leg)).first;
  by_sequence_.emplace(*sequence, it);
  ledger_.LegTaken(command.leg(), command.trace_id());
  ledger_.counters().set_requests(ledger_.counters().requests() + 1);
  Reserve(it, command, prompt.waited);
}

// Decides whether this node computes the rest of the prompt, and answers Reserved.
void DecodeCore::Reserve(Legs::iterator it, const v1::StartDecode& command,
                         const std::optional<node::FetchedPrompts::Waiting>& waited) {
  Leg& leg = it->second;
  const node::Sequence& sequence = scheduler_.Get(leg.sequence);
  const int64_t uncached = sequence.prompt_tokens - sequence.cached_tokens;
  const int64_t local_max = command.local_prefill_tokens_max();
  bool local = local_max == -1 || uncached <= local_max || scheduler_.CanFork(leg.sequence);
  // Otherwise a prompt that takes blocks as it is computed has no room for another node's.
  if (!local) local = !CanReceive(leg, command.prefill_blocks());
  v1::NodeEvent event;
  v1::Reserved& reserved = *event.mutable_reserved();
  *reserved.mutable_leg() = leg.wire;
  reserved.set_cached_tokens(static_cast<int32_t>(sequence.cached_tokens));
  reserved.set_lent_units(leg.lent_units);
  reserved.set_fetch_declined(command.fetch_blocks() > 0 && !waited.has_value());
  if (waited.has_value() && waited->fetched.has_value())
    *reserved.mutable_fetched() = *waited->fetched;
  if (local) {
    leg.phase = Phase::kComputing;
    scheduler_.Schedule(leg.sequence);
    reserved.set_computes_locally(true);
  } else if (!scheduler_.AwaitPrompt(leg.sequence)) {
    return RefuseForSlots(it);
  } else {
    leg.phase = Phase::kReceiving;
    leg.lease = ledger_.NewLease();
    leg.epoch = Epoch(1);
    const engine::EngineSpec& spec = scheduler_.spec();
    const kv::BlockLayout& layout = spec.layout;
    leg.first_ordinal =
        (sequence.cached_tokens + int64_t{leg.lent_units} * spec.unit_tokens) / layout.block_tokens;
    const int32_t window_first = layout.FirstInWindow(sequence.prompt_tokens);
    leg.lease_blocks = layout.BlocksFor(sequence.prompt_tokens) - leg.first_ordinal;
    by_lease_.emplace(leg.lease, it);
    const auto first = sequence.blocks.begin() + leg.first_ordinal;
    ledger_.Transfer(transfer::OpenLease{.lease = leg.lease,
                                         .epoch = leg.epoch,
                                         .first_ordinal = static_cast<int32_t>(leg.first_ordinal),
                                         .blocks = {first, first + leg.lease_blocks},
                                         .deadline = leg.deadline,
                                         .window_first_ordinal = window_first});
    reserved.set_lease_id(leg.lease.value());
    reserved.set_epoch(leg.epoch.value());
  }
  ledger_.Send(it->first.router, std::move(event));
}

}  // namespace tandem::decode_node
