#include "router/core/decode_leg.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

void DecodeLeg::Place(const Placement& placement, int64_t prompt_tokens, absl::Duration step_goal,
                      const request::Urgency& urgency) {
  const Node& node = *context_.fleet.Find(placement.decode);
  state_ = {};
  state_.node = placement.decode;
  state_.node_id = node.id.value();
  state_.attempt = commands_.NextAttempt();
  state_.live = true;
  state_.blocks =
      node.blocks_to_start(prompt_tokens) - placement.decode_cached_tokens / node.block_tokens;
  state_.step_goal = step_goal;
  context_.fleet.DecodePlaced(state_.node, state_.blocks, step_goal);
  state_.beyond = node.blocks_beyond(prompt_tokens);
  if (state_.beyond > 0) context_.fleet.BeyondPoolPlaced(state_.node, state_.beyond);
  state_.claimed_tokens =
      placement.decode_cached_tokens / node.block_tokens * int64_t{node.block_tokens};
  if (placement.local_prefill_us <= 0) return;
  state_.local = context_.fleet.LocalPrefillBegan(state_.node, placement.local_prefill_us, urgency);
}

void DecodeLeg::SendStart(const RequestInput& input, Start wanted) {
  v1::NodeCommand command;
  v1::StartDecode& start = *command.mutable_start_decode();
  *start.mutable_leg() = commands_.NameOf(state_.attempt);
  *start.mutable_sequence() = std::move(wanted.sequence);
  // A prompt whose tokens are scored is computed whole, whatever the node holds.
  if (input.prompt_logprobs.has_value()) state_.claimed_tokens = 0;
  start.set_trace_id(input.trace_id);
  start.set_forks_follow(input.forks_follow);
  start.set_local_prefill_tokens_max(wanted.local_prefill_tokens_max);
  if (const Node* node = context_.fleet.Find(state_.node); node != nullptr)
    start.set_borrow_blocks_max(node->borrow_blocks_max);
  start.set_arrived_us(absl::ToUnixMicros(input.arrived));
  start.set_prefill_blocks(wanted.prefill_blocks);
  start.set_first_token_due_us(LegCommands::DueUs(wanted.first_token_within));
  state_.holder = wanted.holder;
  if (wanted.holder.has_value()) NameHolder(*wanted.holder, context_.fleet, start);
  if (state_.step_goal != absl::InfiniteDuration())
    start.set_step_goal_us(absl::ToInt64Microseconds(state_.step_goal));
  start.set_deadline_s(absl::ToDoubleSeconds(context_.options.prefill_deadline));
  commands_.Send(state_.node, std::move(command));
}

void DecodeLeg::OnReserved(const v1::Reserved& reserved, int64_t prompt_tokens) {
  if (!state_.reserved) {
    context_.fleet.DecodeReserved(state_.node, state_.blocks);
    CheckHolders(reserved);
  }
  state_.reserved = true;
  state_.lease = reserved.lease_id();
  state_.epoch = reserved.epoch();
  state_.computes_locally = reserved.computes_locally();
  if (!state_.computes_locally) EndLocalPrefill();
  state_.cached_tokens = std::clamp<int64_t>(reserved.cached_tokens(), 0, prompt_tokens);
  state_.lent_units = std::max(0, reserved.lent_units());
  state_.received_tokens =
      std::clamp<int64_t>(reserved.received_tokens(), 0, prompt_tokens - state_.cached_tokens);
}

// What was fetched counts as cached.
void DecodeLeg::CheckHolders(const v1::Reserved& reserved) {
  context_.fleet.PrefixChecked(state_.node, state_.claimed_tokens, reserved.cached_tokens());
  if (!state_.holder.has_value() || reserved.fetch_declined()) return;
  NoteFetch(*state_.holder, state_.node, reserved, context_.fleet);
  const int64_t held = int64_t{state_.holder->blocks} * context_.fleet.block_tokens();
  context_.fleet.PrefixChecked(state_.holder->node, held, reserved.cached_tokens());
}

void DecodeLeg::OnInstalled() {
  state_.installed = true;
  EndLocalPrefill();
}

void DecodeLeg::EndLocalPrefill() {
  if (!state_.local.has_value()) return;
  context_.fleet.LocalPrefillEnded(state_.node, *state_.local);
  state_.local.reset();
}

void DecodeLeg::SendNewEpoch(int32_t local_prefill_tokens_max) {
  ++state_.epoch;
  v1::NodeCommand command;
  v1::NewEpoch& epoch = *command.mutable_new_epoch();
  *epoch.mutable_leg() = commands_.NameOf(state_.attempt);
  epoch.set_lease_id(state_.lease);
  epoch.set_epoch(state_.epoch);
  epoch.set_local_prefill_tokens_max(local_prefill_tokens_max);
  commands_.Send(state_.node, std::move(command));
}

void DecodeLeg::Abort(absl::string_view reason) {
  if (state_.live) commands_.SendAbort(state_.node, state_.attempt, reason);
  Forget();
}

void DecodeLeg::Forget() {
  if (!state_.live) return;
  EndLocalPrefill();
  context_.fleet.DecodeEnded(state_.node, state_.reserved ? 0 : state_.blocks, state_.step_goal);
  if (state_.beyond > 0) context_.fleet.BeyondPoolEnded(state_.node, state_.beyond);
  state_.live = false;
}

}  // namespace tandem::router
