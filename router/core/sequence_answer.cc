#include "router/core/sequence_answer.h"

#include <utility>

#include "common/telemetry/log.h"

namespace tandem::router {

SequenceAnswer::SequenceAnswer(const RequestInput& input, const SequenceContext& context,
                               absl::Time now)
    : input_(input),
      context_(context),
      tokens_(input.stop, input.eos_token_ids, context.model.vocab_size),
      scores_(input.prompt_logprobs.has_value(), input.prompt->size()) {
  steps_.submitted = now;
}

absl::Status SequenceAnswer::Offer(const v1::GeneratedToken& token, bool count_duplicate,
                                   const Nodes& nodes, absl::Time now) {
  const absl::StatusOr<TokenStream::Outcome> outcome = tokens_.Offer(token);
  if (!outcome.ok()) return outcome.status();
  if (outcome->delivered > 0) {
    steps_.OnToken(now);
    if (numerics_id_.empty()) numerics_id_ = context_.fleet.numerics_id();
  }
  if (outcome->duplicate && count_duplicate) ++context_.counters.duplicate_tokens;
  if (outcome->diverged) {
    ++context_.counters.diverged_tokens;
    Log(LogLevel::kError, "a leg sent another token than the one delivered",
        {{"request_id", input_.id.value()},
         {input_.trace_id.empty() ? "" : "trace_id", input_.trace_id},
         {"decode_node", nodes.decode},
         {"prefill_node", nodes.prefill},
         {"index", token.index()},
         {"delivered", tokens_.delivered()[token.index()]},
         {"got", token.token_id()}});
  }
  return absl::OkStatus();
}

SequenceAnswer::Outcome SequenceAnswer::Take(int attempts, absl::Time now) {
  Outcome outcome;
  if (!failure_.ok()) {
    outcome.failure = failure_;
    return outcome;
  }
  if (AwaitsScores()) {
    // The scores come before any token. An aborted sequence gives its client neither.
    if (ending_ != request::FinishReason::kAborted) return outcome;
  } else {
    outcome.prompt_scores = scores_.TakeOnce();
    outcome.tokens = tokens_.TakeReady();
  }
  if (!ended()) return outcome;
  // Of tokens that waited for scores the client has none.
  const size_t given = AwaitsScores() ? 0 : tokens_.delivered().size();
  SequenceDone& done = outcome.done.emplace();
  done.sequence_index = input_.sequence_index;
  done.reason = ending_;
  done.usage =
      report_.Usage(static_cast<int32_t>(input_.prompt->size()), static_cast<int32_t>(given));
  done.route = report_.Route(attempts);
  done.route.set_mixed_numerics(context_.fleet.mixes_numerics());
  done.timing = steps_.Timing(now);
  done.placements = report_.placements();
  done.placements_dropped = report_.placements_dropped();
  return outcome;
}

void SequenceAnswer::KeepDecision(const std::shared_ptr<v1::PlacementDecision>& decision,
                                  absl::Time now) {
  if (decision == nullptr) return;
  decision->set_sequence_index(input_.sequence_index);
  decision->set_at_ms(absl::ToDoubleMilliseconds(now - steps_.submitted));
  report_.AddPlacement(decision);
}

}  // namespace tandem::router
