#include "router/core/decode_leg.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

void DecodeLeg::Place(const Placement& placement, int64_t prompt_tokens) {
  const Node& node = *context_.fleet.Find(placement.decode);
  state_ = {};
  state_.node = placement.decode;
  state_.node_id = node.id.value();
  state_.attempt = commands_.NextAttempt();
  state_.live = true;
  state_.blocks =
      node.blocks_to_start(prompt_tokens) - placement.decode_cached_tokens / node.block_tokens;
  context_.fleet.DecodePlaced(state_.node, state_.blocks);
}

void DecodeLeg::SendStart(const RequestInput& input, v1::SequenceSpec sequence,
                          int32_t local_prefill_tokens_max) {
  v1::NodeCommand command;
  v1::StartDecode& start = *command.mutable_start_decode();
  *start.mutable_leg() = commands_.NameOf(state_.attempt);
  *start.mutable_sequence() = std::move(sequence);
  start.set_trace_id(input.trace_id);
  start.set_forks_follow(input.forks_follow);
  start.set_local_prefill_tokens_max(local_prefill_tokens_max);
  if (const Node* node = context_.fleet.Find(state_.node); node != nullptr)
    start.set_borrow_blocks_max(node->borrow_blocks_max);
  start.set_deadline_s(absl::ToDoubleSeconds(context_.options.prefill_deadline));
  commands_.Send(state_.node, std::move(command));
}

void DecodeLeg::OnReserved(const v1::Reserved& reserved, int64_t prompt_tokens) {
  if (!state_.reserved) context_.fleet.DecodeReserved(state_.node, state_.blocks);
  state_.reserved = true;
  state_.lease = reserved.lease_id();
  state_.epoch = reserved.epoch();
  state_.computes_locally = reserved.computes_locally();
  state_.cached_tokens = std::clamp<int64_t>(reserved.cached_tokens(), 0, prompt_tokens);
  state_.received_tokens =
      std::clamp<int64_t>(reserved.received_tokens(), 0, prompt_tokens - state_.cached_tokens);
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

void DecodeLeg::End(absl::string_view abort_reason) {
  if (!state_.live) return;
  if (!abort_reason.empty()) commands_.SendAbort(state_.node, state_.attempt, abort_reason);
  context_.fleet.DecodeEnded(state_.node, state_.reserved ? 0 : state_.blocks);
  state_.live = false;
}

}  // namespace tandem::router
