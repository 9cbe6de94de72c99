// What a finished step did to one of its sequences.
// Thread safety: none; the engine thread. Owner: the SequenceScheduler fills it, for its core.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "common/node/sequence.h"

namespace tandem::node {

// What a finished step did to one sequence that was not released meanwhile.
struct StepOutcome {
  SequenceId id;
  Sequence* sequence = nullptr;  // until it is released
  // kDataLoss: a block of this sequence is damaged, and neither it nor what was computed from it is
  // found as a prefix any more. Otherwise as the step's, or what makes request_at_fault.
  absl::Status status;
  // No token can be chosen of those that the request allows. No node can continue it. Where it
  // allows all, `status` is kInternal, and another node may.
  bool request_at_fault = false;
  bool sampled = false;
  engine::SampledToken token;  // if sampled; not yet appended
  // Scores of prompt tokens first_scored, first_scored + 1, ...; each token's once.
  std::vector<engine::SampledToken> prompt_scores;
  int64_t first_scored = 0;
};

// Puts the sampled token into `outcome`, or the error if none could be chosen. Of a sequence with a
// damaged block, puts that error there and withdraws from the prefix cache that block and what was
// computed from it.
void TakeToken(Sequence& sequence, const engine::SampledToken& token, kv::BlockPool& pool,
               StepOutcome& outcome);
// Moves the scores of the step's prompt tokens there; `first_row` is the slice's.
void TakeScores(Sequence& sequence, int64_t first_row, StepOutcome& outcome);

}  // namespace tandem::node
