#include "router/core/prefill_leg.h"

#include <algorithm>
#include <utility>

namespace tandem::router {

void PrefillLeg::Plan(NodeKey node, int64_t tokens, int64_t prompt_tokens,
                      const request::Urgency& urgency) {
  const int tries = state_.tries;
  state_ = {};
  state_.tries = tries;
  state_.node = node;
  state_.node_id = context_.fleet.Find(node)->id.value();
  state_.tokens = tokens;
  state_.prompt_tokens = prompt_tokens;
  state_.counted = true;
  state_.work = context_.fleet.PrefillPlaced(node, tokens, prompt_tokens, urgency);
}

bool PrefillLeg::PlanHolds() const {
  const bool planned = state_.counted && !sent();
  const Node* node = planned ? context_.fleet.Find(state_.node) : nullptr;
  return node != nullptr && (!node->draining || state_.retained);
}

void PrefillLeg::Send(const DecodeLeg& decode, const RequestInput& input, v1::SequenceSpec sequence,
                      const std::optional<PrefixHolder>& holder,
                      absl::Duration first_token_within) {
  state_.attempt = commands_.NextAttempt();
  state_.live = true;
  ++state_.tries;
  const Node& receiver = *context_.fleet.Find(decode.node());

  v1::NodeCommand command;
  v1::Prefill& prefill = *command.mutable_prefill();
  *prefill.mutable_leg() = commands_.NameOf(state_.attempt);
  *prefill.mutable_sequence() = std::move(sequence);
  prefill.set_lease_id(decode.lease());
  prefill.set_epoch(decode.epoch());
  prefill.set_first_ordinal(static_cast<int32_t>(decode.tokens_held() / receiver.block_tokens));
  prefill.set_receiver_node_id(receiver.id.value());
  prefill.set_receiver_incarnation(receiver.incarnation.value());
  prefill.set_receiver_address(receiver.transfer_address);
  prefill.set_receiver_host(receiver.host);
  prefill.set_trace_id(input.trace_id);
  prefill.set_deadline_s(absl::ToDoubleSeconds(context_.options.prefill_deadline));
  prefill.set_first_token_due_us(LegCommands::DueUs(first_token_within));
  state_.holder = holder;
  state_.scored = input.prompt_logprobs.has_value();
  if (decode.lent_units() > 0) {
    prefill.set_lent_units(decode.lent_units());
    if (const Node* node = context_.fleet.Find(state_.node); node != nullptr)
      prefill.set_borrow_blocks_max(node->borrow_blocks_max);
    prefill.set_arrived_us(absl::ToUnixMicros(input.arrived));
  }
  if (holder.has_value()) NameHolder(*holder, context_.fleet, prefill);
  commands_.Send(state_.node, std::move(command));
}

void PrefillLeg::OnFinished(const v1::PrefillFinished& finished) {
  state_.finished = true;
  ReleaseTokens();
  const bool tried_fetch = state_.holder.has_value() && !finished.fetch_declined();
  if (tried_fetch) NoteFetch(*state_.holder, state_.node, finished, context_.fleet);
  if (state_.retained || state_.scored) return;
  // What the index said of the node, and of the one that it was to fetch from.
  // Tokens that were fetched count as cached. The index knows whole blocks only.
  const int64_t block_tokens = std::max(1, context_.fleet.block_tokens());
  const int64_t found = finished.tokens().cached() / block_tokens * block_tokens;
  const int64_t claimed = (state_.prompt_tokens - state_.tokens) / block_tokens * block_tokens;
  context_.fleet.PrefixChecked(state_.node, claimed, found);
  if (!tried_fetch) return;
  const int64_t held = state_.holder->blocks * block_tokens;
  context_.fleet.PrefixChecked(state_.holder->node, held, found);
}

void PrefillLeg::ReleaseTokens() {
  if (!state_.counted) return;
  context_.fleet.PrefillEnded(state_.node, state_.tokens, state_.work);
  state_.counted = false;
}

void PrefillLeg::Abort(absl::string_view reason) {
  if (state_.live) commands_.SendAbort(state_.node, state_.attempt, reason);
  Forget();
}

void PrefillLeg::Forget() {
  ReleaseTokens();
  state_.live = false;
}

}  // namespace tandem::router
