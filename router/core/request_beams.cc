// Beam search as a request's life: every step is one single-token sequence for each running beam,
// on the decode node whose cache holds what they share.
#include <algorithm>
#include <utility>

#include "router/core/router_core_impl.h"

namespace tandem::router {
namespace {

// A step's legs carry the names of the step before; their attempts tell them apart.
constexpr int kAttemptBitsOfStep = 16;

}  // namespace

void RouterCoreImpl::StartSearch(RequestGroup& group, RequestInput input, absl::Time now) {
  std::vector<TokenId> stops = input.stop.stop_token_ids;
  if (!input.stop.ignore_eos)
    stops.insert(stops.end(), input.eos_token_ids.begin(), input.eos_token_ids.end());
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  BeamSearch search(*input.beams, input.stop.max_tokens, std::move(stops),
                    input.sampling.logprobs.value_or(0));
  group.beams = std::make_unique<BeamRun>(std::move(input), now, std::move(search));
  AddBeams(group, now);
}

void RouterCoreImpl::AddBeams(RequestGroup& group, absl::Time now) {
  BeamRun& run = *group.beams;
  group.by_index.clear();
  int32_t beam_index = 0;
  for (const BeamSearch::Beam& beam : run.search.running()) {
    RequestInput input = run.base;
    for (const v1::GeneratedToken& token : beam.tokens) input.prompt.push_back(token.token_id());
    input.sampling.temperature = 0;
    input.sampling.logprobs = run.search.candidates();
    input.stop = {};
    input.stop.max_tokens = 1;
    input.stop.ignore_eos = true;
    input.max_tokens_given = true;
    input.sequence_index += beam_index++;
    input.sequences = 1;
    input.installs_prompt = true;
    input.attempts_before = run.steps << kAttemptBitsOfStep;
    input.answer_deadline -= now - run.submitted;
    if (run.steps > 0) input.prompt_logprobs.reset();
    AddSequence(group, std::move(input), now);
  }
}

void RouterCoreImpl::TakeStep(RequestGroup& group, RequestMachine::Outcome& outcome,
                              int32_t sequence_index) {
  BeamRun& run = *group.beams;
  if (outcome.prompt_scores.has_value())
    actions_.client_events.emplace_back(group.id, PromptScored{*std::move(outcome.prompt_scores)});
  if (!outcome.tokens.empty())
    run.search.Offer(sequence_index - group.first_index, outcome.tokens.front());
  if (!outcome.done.has_value()) return;
  if (outcome.done->reason == request::FinishReason::kAborted) run.aborted = true;
  if (run.steps == 0) run.first = *std::move(outcome.done);
}

void RouterCoreImpl::AdvanceSearch(RequestGroup& group, absl::Time now) {
  BeamRun& run = *group.beams;
  // A default max_tokens shrinks to what fits: known now at the latest, a node has taken a step.
  if (run.steps == 0 && !run.base.max_tokens_given && fleet_.decode_capacity_tokens() > 0) {
    run.search.LimitTokens(std::max<int64_t>(
        1, fleet_.decode_capacity_tokens() - static_cast<int64_t>(run.base.prompt.size())));
  }
  if (run.aborted || run.search.Advance()) return EmitBeams(group, now);
  ++run.steps;
  AddBeams(group, now);
  const std::vector<Serial> serials = group.by_index;
  for (const Serial serial : serials) {
    File(serial);
    deadlines_.Set(serial, sequences_.at(serial).machine->deadline());
  }
}

void RouterCoreImpl::EmitBeams(RequestGroup& group, absl::Time now) {
  const BeamRun& run = *group.beams;
  const std::vector<BeamSearch::Beam>& complete = run.search.complete();
  const auto answers =
      static_cast<int32_t>(run.aborted ? 1 : std::min<size_t>(run.base.sequences, complete.size()));
  for (int32_t i = 0; i < answers; ++i) {
    RequestDone done = run.first;
    done.sequence_index = group.first_index + i;
    done.last = i + 1 == answers;
    done.reason = request::FinishReason::kAborted;
    done.usage.set_output_tokens(0);
    done.timing.set_total_ms(absl::ToDoubleMilliseconds(now - run.submitted));
    if (i > 0) {
      done.usage.set_prompt_tokens(0);
      done.usage.set_cached_tokens(0);
    }
    if (!run.aborted) {
      const BeamSearch::Beam& beam = complete[static_cast<size_t>(i)];
      done.reason = beam.reason;
      done.usage.set_output_tokens(static_cast<int32_t>(beam.tokens.size()));
      actions_.client_events.emplace_back(group.id, TokensReady{done.sequence_index, beam.tokens});
    }
    actions_.client_events.emplace_back(group.id, std::move(done));
  }
  ++counters_.requests_finished;
  DropGroup(group);
}

}  // namespace tandem::router
