#include "router/front_end/answer_group.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/rpc/convert.h"

namespace tandem::router {

AnswerGroup::AnswerGroup(AnswerOptions options, const NewAssembler& new_assembler)
    : options_(std::move(options)), answers_(static_cast<size_t>(options_.sequences)) {
  for (size_t i = 0; i < answers_.size(); ++i) {
    answers_[i].assembler = new_assembler();
    answers_[i].kept.set_sequence_index(static_cast<int32_t>(i));
  }
}

size_t AnswerGroup::IndexOf(int32_t sequence_index) const {
  TANDEM_CHECK(sequence_index >= 0 && sequence_index < static_cast<int32_t>(answers_.size()),
               "sequence ", sequence_index, " of ", answers_.size());
  return static_cast<size_t>(sequence_index);
}

int32_t AnswerGroup::ResumeFrom(int32_t sequence_index) const {
  const auto index = static_cast<size_t>(sequence_index);
  return index < options_.resume_from.size() ? options_.resume_from[index] : 0;
}

bool AnswerGroup::stopped(int32_t sequence_index) const {
  return answers_[IndexOf(sequence_index)].assembler->stopped();
}

v1::GeneratedToken AnswerGroup::Shown(const v1::GeneratedToken& token) const {
  v1::GeneratedToken shown = token;
  if (!options_.return_logprobs) shown.clear_logprob();
  return shown;
}

AnswerGroup::Parts AnswerGroup::OnScores(PromptScored event) {
  // Clients accept messages of 4 MiB by default. This many tokens, with 20 top ones each, take 0.4.
  constexpr size_t kTokensOfPart = 1024;
  Parts parts(1 + (event.tokens.size() - (event.tokens.empty() ? 0 : 1)) / kTokensOfPart);
  for (v1::GenerateResponse& part : parts) part.mutable_prompt_logprobs();
  for (size_t i = 0; i < event.tokens.size(); ++i)
    *parts[i / kTokensOfPart].mutable_prompt_logprobs()->add_tokens() = std::move(event.tokens[i]);
  return parts;
}

bool AnswerGroup::OnTokens(const TokensReady& event, v1::GenerateResponse& part) {
  if (options_.prompt_only) return false;
  Answer& answer = At(event.sequence_index);
  v1::Delta& delta = *part.mutable_delta();
  delta.Clear();
  delta.set_sequence_index(event.sequence_index);
  for (const v1::GeneratedToken& token : event.tokens) {
    // The node computed it before the router saw the stop string: not part of the answer.
    if (answer.assembler->stopped()) break;
    ++answer.output_tokens;
    answer.logprob_sum += static_cast<double>(token.logprob());
    const std::string text = answer.assembler->Append(token.token_id());
    if (token.index() < ResumeFrom(event.sequence_index)) continue;
    delta.mutable_text()->append(text);
    if (options_.return_tokens) *delta.add_tokens() = Shown(token);
  }
  return Give(answer, delta);
}

bool AnswerGroup::Give(Answer& answer, v1::Delta& delta) {
  if (!std::exchange(answer.begun, true) && ResumeFrom(delta.sequence_index()) == 0)
    delta.mutable_text()->insert(0, options_.echo);
  if (delta.text().empty() && delta.tokens_size() == 0) return false;
  if (!keeps()) return true;
  answer.kept.mutable_text()->append(delta.text());
  for (v1::GeneratedToken& token : *delta.mutable_tokens())
    *answer.kept.add_tokens() = std::move(token);
  return false;
}

AnswerGroup::Parts AnswerGroup::OnDone(SequenceDone event) {
  Answer& answer = At(event.sequence_index);
  Parts parts;
  v1::Delta rest;
  rest.set_sequence_index(event.sequence_index);
  rest.set_text(answer.assembler->Flush());
  if (Give(answer, rest)) *parts.emplace_back().mutable_delta() = std::move(rest);
  v1::Finished& finished = answer.finished;
  finished.set_sequence_index(event.sequence_index);
  // The last token that max_tokens allows may complete the stop string. Then the node's end and the
  // router's come in either order.
  const bool stopped =
      answer.assembler->stopped() && event.reason == request::FinishReason::kLength;
  // The one token of a prompt-only request is not shown, so its stop string does not count.
  const bool nothing_more = options_.prompt_only && event.reason == request::FinishReason::kStop;
  finished.set_reason(rpc::ToWire(stopped        ? request::FinishReason::kStop
                                  : nothing_more ? request::FinishReason::kLength
                                                 : event.reason));
  finished.set_stop_string(std::string(answer.assembler->stop_string()));
  if (const auto token = answer.assembler->stop_token(); token.has_value() && !nothing_more)
    finished.set_stop_token_id(*token);
  *finished.mutable_usage() = std::move(event.usage);
  finished.mutable_usage()->set_output_tokens(answer.output_tokens);
  *finished.mutable_route() = std::move(event.route);
  *finished.mutable_timing() = std::move(event.timing);
  if (!options_.return_gaps) finished.mutable_timing()->clear_gap_ms();
  if (!keeps()) {
    *parts.emplace_back().mutable_finished() = std::move(finished);
    return parts;
  }
  return event.last ? GiveBest() : parts;
}

AnswerGroup::Parts AnswerGroup::GiveBest() {
  std::vector<size_t> order(answers_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return answers_[a].logprob_sum > answers_[b].logprob_sum;
  });
  const v1::Usage prompt = answers_[0].finished.usage();
  Parts parts;
  for (int32_t rank = 0; rank < options_.n; ++rank) {
    Answer& answer = answers_[order[static_cast<size_t>(rank)]];
    answer.kept.set_sequence_index(rank);
    answer.finished.set_sequence_index(rank);
    answer.finished.mutable_usage()->set_prompt_tokens(rank == 0 ? prompt.prompt_tokens() : 0);
    answer.finished.mutable_usage()->set_cached_tokens(rank == 0 ? prompt.cached_tokens() : 0);
    *parts.emplace_back().mutable_delta() = std::move(answer.kept);
    *parts.emplace_back().mutable_finished() = answer.finished;
  }
  for (size_t rank = static_cast<size_t>(options_.n); rank < order.size(); ++rank)
    output_tokens_kept_back_ += answers_[order[rank]].output_tokens;
  return parts;
}

}  // namespace tandem::router
