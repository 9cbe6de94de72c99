#include "common/node/fetched_prompts.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace tandem::node {

template <typename Command>
std::optional<LeaseId> FetchedPrompts::Begin(RouterKey router, const Command& command,
                                             const SequenceInput& input,
                                             absl::Duration time_allowed, absl::Time now) {
  if (command.fetch_blocks() <= 0 || input.prompt_logprobs.has_value()) return std::nullopt;
  std::vector<kv::BlockHash> hashes = scheduler_.HashesOf(input);
  const kv::BlockLayout& layout = scheduler_.spec().layout;
  const auto prompt = static_cast<int64_t>(input.prompt.size());
  // At least the last token is computed, so that there is a row to sample from.
  const int64_t useful =
      std::min<int64_t>(command.fetch_blocks(), (prompt - 1) / layout.block_tokens);
  hashes.resize(static_cast<size_t>(std::clamp<int64_t>(useful, 0, std::ssize(hashes))));
  // What the holder has of the next block is not full. Again, the last token is computed.
  const int64_t first_after = useful * layout.block_tokens;
  const int64_t after = std::min<int64_t>(prompt - 1 - first_after, layout.block_tokens - 1);
  const auto tokens_after =
      absl::MakeConstSpan(input.prompt)
          .subspan(static_cast<size_t>(first_after), useful < command.fetch_blocks() ? 0 : after);
  return fetch_.Begin(
      router, {command.fetch_from_node_id(), command.fetch_from_incarnation()},
      {.hashes = hashes, .tokens_after = tokens_after, .prompt_blocks = layout.BlocksFor(prompt)},
      time_allowed, now);
}

bool FetchedPrompts::WaitForFetch(RouterKey router, const v1::Prefill& command,
                                  const SequenceInput& input, absl::Duration time_allowed,
                                  absl::Time now) {
  const auto lease = Begin(router, command, input, time_allowed, now);
  if (!lease.has_value()) return false;
  Wait(*lease, {.leg = LegKey(router, command.leg()),
                .attempt = command.leg().attempt(),
                .time_allowed = time_allowed,
                .deadline = now + time_allowed,
                .arrived = input.arrived})
      .mutable_prefill()
      ->CopyFrom(command);
  return true;
}

bool FetchedPrompts::WaitForFetch(RouterKey router, const v1::StartDecode& command,
                                  const SequenceInput& input, absl::Duration time_allowed,
                                  absl::Time now) {
  const auto lease = Begin(router, command, input, time_allowed, now);
  if (!lease.has_value()) return false;
  Wait(*lease, {.leg = LegKey(router, command.leg()),
                .attempt = command.leg().attempt(),
                .time_allowed = time_allowed,
                .deadline = now + time_allowed,
                .arrived = input.arrived})
      .mutable_start_decode()
      ->CopyFrom(command);
  return true;
}

v1::NodeCommand& FetchedPrompts::Wait(LeaseId lease, Waiting waiting) {
  return waiting_.emplace(lease, std::move(waiting)).first->second.command;
}

std::optional<FetchedPrompts::Waiting> FetchedPrompts::Take(
    LeaseId lease, const transfer::LeaseInstalled* installed) {
  auto node = waiting_.extract(lease);
  if (node.empty()) return std::nullopt;
  Waiting waiting = std::move(node.mapped());
  if (installed == nullptr) return waiting;
  v1::FetchedKv& fetched = waiting.fetched.emplace();
  fetched.set_kv_bytes_received(installed->bytes_received);
  fetched.set_kv_transfer_ms(absl::ToDoubleMilliseconds(installed->transfer_time));
  fetched.set_kv_receive_ms(absl::ToDoubleMilliseconds(installed->receive_time));
  fetched.set_transport(installed->transport);
  return waiting;
}

absl::Status FetchedPrompts::Waiting::StillWanted(bool draining, absl::Time now) const {
  if (deadline <= now)
    return absl::DeadlineExceededError("the prompt's beginning was not fetched in time");
  if (draining) return absl::UnavailableError("this node is draining");
  return absl::OkStatus();
}

bool FetchedPrompts::Drop(const LegKey& leg, uint32_t attempt) {
  for (auto it = waiting_.begin(); it != waiting_.end(); ++it) {
    const Waiting& waiting = it->second;
    if (leg < waiting.leg || waiting.leg < leg) continue;
    if (attempt <= waiting.attempt) return false;
    waiting_.erase(it);
    return true;
  }
  return true;
}

void FetchedPrompts::OnRouterLost(RouterKey router) {
  std::erase_if(waiting_, [&](const auto& entry) { return entry.second.leg.router == router; });
}

}  // namespace tandem::node
