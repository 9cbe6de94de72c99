#include "common/node/step_outcome.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/node/sequence_fork.h"

namespace tandem::node {

void TakeToken(Sequence& sequence, const engine::SampledToken& token, kv::BlockPool& pool,
               StepOutcome& outcome) {
  if (token.damaged.has_value()) {
    outcome.status = absl::DataLossError(
        absl::StrCat("block ", token.damaged->value(),
                     " does not hold the KV of the sequence's tokens: it is damaged"));
    return ForgetFrom(sequence, *token.damaged, pool);
  }
  if (token.no_choice) {
    const std::string why =
        absl::StrCat("no token can be chosen at position ", sequence.tokens.size(),
                     ": every logit is NaN, minus infinity or not allowed");
    // Where all tokens are allowed, no logit is a number: a node that computes wrongly does that,
    // and another one may not.
    outcome.request_at_fault =
        sequence.input.matcher.has_value() || !sequence.input.sampling.allowed_token_ids.empty();
    outcome.status =
        outcome.request_at_fault ? absl::InvalidArgumentError(why) : absl::InternalError(why);
    return;
  }
  outcome.sampled = true;
  outcome.token = token;
}

// Rows that are computed again after a preemption are scored again, but reported once.
void TakeScores(Sequence& sequence, int64_t first_row, StepOutcome& outcome) {
  std::vector<engine::SampledToken>& scores = sequence.step_scores;
  if (scores.empty()) return;
  const int64_t known = std::min<int64_t>(sequence.num_scored - first_row, scores.size());
  outcome.first_scored = sequence.num_scored + 1;
  outcome.prompt_scores.assign(std::make_move_iterator(scores.begin() + known),
                               std::make_move_iterator(scores.end()));
  sequence.num_scored += static_cast<int64_t>(outcome.prompt_scores.size());
}

}  // namespace tandem::node
