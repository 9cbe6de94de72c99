#include "router/core/beam_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::router {
namespace {

BeamSearch MakeSearch(const RequestInput& input) {
  std::vector<TokenId> stops = input.stop->stop_token_ids;
  if (!input.stop->ignore_eos)
    stops.insert(stops.end(), input.eos_token_ids.begin(), input.eos_token_ids.end());
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  return BeamSearch(*input.beams, input.stop->max_tokens, std::move(stops),
                    input.sampling->logprobs.value_or(0));
}

// The KV of the prompt moved once, for all answers.
void ClearTransfer(v1::Route& route) {
  route.clear_kv_bytes_moved();
  route.clear_kv_transfer_ms();
  route.clear_kv_receive_ms();
  route.clear_kv_hidden_ms();
  route.clear_kv_beyond_ms();
  route.clear_transport();
}

}  // namespace

BeamGroup::BeamGroup(RequestInput input, absl::Time now)
    : base_(std::move(input)),
      submitted_(now),
      search_(MakeSearch(base_)),
      running_{{base_.prompt, std::make_shared<HashedBlocks>()}} {}

std::vector<RequestInput> BeamGroup::StepInputs(absl::Time now) {
  SharedValue<request::SamplingParams> sampling = base_.sampling;
  request::SamplingParams& greedy = sampling.Edit();
  greedy.temperature = 0;
  greedy.logprobs = search_.candidates();
  request::StopParams one_token;
  one_token.max_tokens = 1;
  one_token.ignore_eos = true;
  const SharedValue<request::StopParams> stop = std::move(one_token);
  std::vector<RequestInput> inputs;
  std::vector<Running> running;
  for (const BeamSearch::Beam& beam : search_.running()) {
    RequestInput input = base_;
    const Running& parent = running_[static_cast<size_t>(beam.parent)];
    if (beam.num_tokens > 0) {
      std::vector<TokenId> prompt;
      prompt.reserve(parent.prompt->size() + 1);
      prompt.assign(parent.prompt->begin(), parent.prompt->end());
      prompt.push_back(search_.LastToken(beam));
      input.prompt = std::move(prompt);
    }
    // What the parent knows now. The two may come to know different blocks.
    input.hashed = std::make_shared<HashedBlocks>(*parent.hashed);
    running.push_back({input.prompt, input.hashed});
    input.sampling = sampling;
    input.stop = stop;
    input.max_tokens_given = true;
    input.sequence_index += static_cast<int32_t>(inputs.size());
    input.sequences = 1;
    input.installs_prompt = true;
    input.forks_follow = true;
    input.answer_deadline -= now - submitted_;
    if (steps_ > 0) input.prompt_logprobs.reset();
    inputs.push_back(std::move(input));
  }
  running_ = std::move(running);
  return inputs;
}

void BeamGroup::OnOutcome(int32_t beam, SequenceAnswer::Outcome& outcome,
                          const std::string& numerics_id) {
  if (!outcome.tokens.empty()) {
    search_.Offer(beam, outcome.tokens.front());
    if (numerics_id_.empty()) numerics_id_ = numerics_id;
    if (!numerics_id.empty() && numerics_id_ != numerics_id) {
      failure_ = absl::UnavailableError(absl::StrCat("the search began under numerics id ",
                                                     numerics_id_, "; the fleet now has ",
                                                     numerics_id, ", which cannot continue it"));
    }
  }
  if (!outcome.done.has_value()) return;
  if (outcome.done->reason == request::FinishReason::kAborted) aborted_ = true;
  if (steps_ == 0) first_ = *std::move(outcome.done);
}

absl::Status BeamGroup::FailureOf(const absl::Status& failure, absl::Time now) const {
  const bool late = absl::IsDeadlineExceeded(failure) && now >= submitted_ + base_.answer_deadline;
  if (!late) return failure;
  return absl::DeadlineExceededError(absl::StrCat(
      "the answer was not complete within its ", absl::FormatDuration(base_.answer_deadline),
      ": the beam search had ", steps_, " of at most ", search_.max_tokens(), " tokens"));
}

bool BeamGroup::Advance(int64_t capacity_tokens) {
  // A default max_tokens shrinks to what fits. The capacity is known now: a node has taken a step.
  if (steps_ == 0 && !base_.max_tokens_given && capacity_tokens > 0) {
    search_.LimitTokens(std::max<int64_t>(1, capacity_tokens - prompt_tokens()));
  }
  if (aborted_ || search_.Advance()) return true;
  ++steps_;
  return false;
}

std::vector<ClientEvent> BeamGroup::Answers(absl::Time now) const {
  const std::vector<BeamSearch::Beam>& complete = search_.complete();
  const auto answers =
      static_cast<int32_t>(aborted_ ? 1 : std::min<size_t>(base_.sequences, complete.size()));
  std::vector<ClientEvent> events;
  for (int32_t i = 0; i < answers; ++i) {
    SequenceDone done = first_;
    done.sequence_index = base_.sequence_index + i;
    done.last = i + 1 == answers;
    done.reason = request::FinishReason::kAborted;
    done.usage.set_output_tokens(0);
    done.timing.set_total_ms(absl::ToDoubleMilliseconds(now - submitted_));
    if (i > 0) {
      done.usage.set_prompt_tokens(0);
      done.usage.set_cached_tokens(0);
      ClearTransfer(done.route);
      done.timing.clear_first_token_predicted_ms();
    }
    if (!aborted_) {
      const BeamSearch::Beam& beam = complete[static_cast<size_t>(i)];
      done.reason = beam.reason;
      done.usage.set_output_tokens(static_cast<int32_t>(beam.num_tokens));
      events.emplace_back(TokensReady{done.sequence_index, search_.Tokens(beam)});
    }
    events.emplace_back(std::move(done));
  }
  return events;
}

}  // namespace tandem::router
