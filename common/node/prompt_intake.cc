#include "common/node/prompt_intake.h"

#include <utility>

namespace tandem::node {
namespace {

const v1::Prefill& CommandOf(const v1::NodeCommand& command, const v1::Prefill*) {
  return command.prefill();
}
const v1::StartDecode& CommandOf(const v1::NodeCommand& command, const v1::StartDecode*) {
  return command.start_decode();
}

}  // namespace

template <typename Command>
std::optional<PromptIntake::Prompt> PromptIntake::Take(RouterKey router, const Command& command,
                                                       absl::Time arrived, absl::Time now,
                                                       std::type_identity_t<Parse<Command>> parse) {
  NodeLedger& ledger = resources_.ledger();
  if (!Drop(LegKey(router, command.leg()), command.leg().attempt())) return std::nullopt;
  const auto refuse = [&](const absl::Status& status) {
    ledger.Refuse(router, command.leg(), status, command.trace_id());
    return std::nullopt;
  };
  if (ledger.draining()) return refuse(absl::UnavailableError("this node is draining"));
  const auto time_allowed = ParseDeadline(command.deadline_s());
  if (!time_allowed.ok()) return refuse(time_allowed.status());
  auto input = parse(router, command);
  if (!input.ok()) return refuse(input.status());
  // A load or a fetch takes blocks, too: not for a prompt that would then be refused, and not those
  // that a sequence lacks.
  constexpr bool kGenerates = std::is_same_v<Command, v1::StartDecode>;
  if (absl::Status can = resources_.scheduler().CanAdmit(*input, kGenerates); !can.ok())
    return refuse(can);
  input->arrived = arrived;
  if (resources_.stored_blocks().WaitForLoad(router, command, *input, *time_allowed, now) ||
      resources_.fetched_prompts().WaitForFetch(router, command, *input, *time_allowed, now))
    return std::nullopt;
  return Prompt{.input = *std::move(input),
                .time_allowed = *time_allowed,
                .deadline = now + *time_allowed,
                .waited = std::nullopt};
}

template <typename Command>
std::optional<PromptIntake::Prompt> PromptIntake::TakeFetched(
    LeaseId lease, const transfer::LeaseInstalled* installed, absl::Time now,
    Parse<Command> parse) {
  auto waited = resources_.fetched_prompts().Take(lease, installed);
  if (!waited.has_value()) return std::nullopt;  // the leg has ended
  NodeLedger& ledger = resources_.ledger();
  const RouterKey router = waited->leg.router;
  const Command& command = CommandOf(waited->command, static_cast<const Command*>(nullptr));
  auto input = parse(router, command);
  if (absl::Status wanted = waited->StillWanted(ledger.draining(), now); !wanted.ok())
    input = std::move(wanted);
  if (!input.ok()) {
    ledger.Refuse(router, command.leg(), input.status(), command.trace_id());
    return std::nullopt;
  }
  input->arrived = waited->arrived;
  const absl::Duration time_allowed = waited->time_allowed;
  const absl::Time deadline = waited->deadline;
  return Prompt{.input = *std::move(input),
                .time_allowed = time_allowed,
                .deadline = deadline,
                .waited = std::move(waited)};
}

bool PromptIntake::Drop(const LegKey& leg, uint32_t attempt) {
  return resources_.stored_blocks().Drop(leg, attempt) &&
         resources_.fetched_prompts().Drop(leg, attempt);
}

template std::optional<PromptIntake::Prompt> PromptIntake::Take(RouterKey, const v1::Prefill&,
                                                                absl::Time, absl::Time,
                                                                Parse<v1::Prefill>);
template std::optional<PromptIntake::Prompt> PromptIntake::Take(RouterKey, const v1::StartDecode&,
                                                                absl::Time, absl::Time,
                                                                Parse<v1::StartDecode>);
template std::optional<PromptIntake::Prompt> PromptIntake::TakeFetched(
    LeaseId, const transfer::LeaseInstalled*, absl::Time, Parse<v1::Prefill>);
template std::optional<PromptIntake::Prompt> PromptIntake::TakeFetched(
    LeaseId, const transfer::LeaseInstalled*, absl::Time, Parse<v1::StartDecode>);

}  // namespace tandem::node
