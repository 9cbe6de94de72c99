#include "router/core/leg_commands.h"

#include <string>
#include <utility>

#include "common/rpc/convert.h"

namespace tandem::router {

v1::Leg LegCommands::NameOf(uint32_t attempt) const {
  v1::Leg leg;
  leg.set_request_id(input_.id.value());
  leg.set_sequence_index(input_.sequence_index);
  leg.set_attempt(attempt);
  leg.set_number(number_);
  return leg;
}

v1::SequenceSpec LegCommands::SpecOf(const PlacedPrompt& prompt, bool wants_scores) const {
  v1::SequenceSpec spec;
  spec.mutable_prompt()->Add(prompt.tokens().begin(), prompt.tokens().end());
  spec.set_delivered_tokens(prompt.delivered());
  *spec.mutable_sampling() = rpc::ToWire(*input_.sampling);
  *spec.mutable_stop() = rpc::ToWire(*input_.stop);
  spec.mutable_stop()->clear_stop();  // the router matches stop strings
  spec.mutable_eos_token_ids()->Add(input_.eos_token_ids.begin(), input_.eos_token_ids.end());
  spec.set_cache_salt(input_.cache_salt);
  if (input_.guided->any()) *spec.mutable_guided() = rpc::ToWire(*input_.guided);
  spec.set_priority(input_.priority);
  if (input_.share.kv_share > 0) {
    spec.set_tenant(input_.share.tenant);
    spec.set_kv_share(input_.share.kv_share);
  }
  if (wants_scores) spec.set_prompt_logprobs(*input_.prompt_logprobs);
  if (context_.fleet.mixes_numerics()) spec.set_numerics_id(context_.fleet.numerics_id());
  return spec;
}

void LegCommands::Send(NodeKey node, v1::NodeCommand command) {
  if (context_.fleet.Find(node) == nullptr) return;
  context_.actions.commands.emplace_back(node, std::move(command));
}

void LegCommands::SendAbort(NodeKey node, uint32_t attempt, absl::string_view reason) {
  v1::NodeCommand command;
  *command.mutable_abort()->mutable_leg() = NameOf(attempt);
  command.mutable_abort()->set_reason(std::string(reason));
  Send(node, std::move(command));
}

}  // namespace tandem::router
