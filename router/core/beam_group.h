// A request that is searched instead of sampled. Each step of the search runs one single-token
// sequence for each running beam, on the decode node whose cache holds what the beams share.
// BeamGroup makes the sequences of a step, collects their tokens, and has the answers at the end;
// BeamSearch has the rules. RequestTable runs the sequences.
//
//   StepInputs ─▶ (the step's sequences run: OnOutcome) ─▶ Advance ─▶ StepInputs … ─▶ Answers
//
// Thread safety: none; a SequenceGroup owns it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/shared_value.h"
#include "router/core/beam_search.h"
#include "router/core/client_event.h"
#include "router/core/hashed_blocks.h"
#include "router/core/request_input.h"
#include "router/core/sequence_answer.h"

namespace tandem::router {

class BeamGroup {
 public:
  // REQUIRES: input.beams.
  BeamGroup(RequestInput input, absl::Time now);

  // The sequences of the current step, one for each running beam. Once a step.
  std::vector<RequestInput> StepInputs(absl::Time now);
  // Takes what the sequence of `beam` (an index of StepInputs) has to say. Leaves its
  // prompt_scores alone. `numerics_id`: the fleet's.
  void OnOutcome(int32_t beam, SequenceAnswer::Outcome& outcome, const std::string& numerics_id);
  // Not OK: the search cannot go on, because the fleet's numerics have changed.
  const absl::Status& failure() const { return failure_; }
  // What the request's client is told when a step's sequence has failed with `failure`: a step
  // knows only what was left of the answer's deadline.
  absl::Status FailureOf(const absl::Status& failure, absl::Time now) const;
  // All sequences of the step have ended. True when the search is over, false when another step
  // follows. `capacity_tokens`: as LoadOrder::UsualCapacityTokens says, 0 if it is not known.
  bool Advance(int64_t capacity_tokens);
  int32_t width() const { return base_.beams->width; }
  int64_t prompt_tokens() const { return static_cast<int64_t>(base_.prompt->size()); }
  // Tokens and end of each answer, best first. REQUIRES: Advance returned true.
  std::vector<ClientEvent> Answers(absl::Time now) const;

 private:
  const RequestInput base_;
  const absl::Time submitted_;
  BeamSearch search_;
  uint32_t steps_ = 0;       // complete ones
  SequenceDone first_;       // of the first step, which computed the prompt
  bool aborted_ = false;     // no step follows
  std::string numerics_id_;  // of the first token
  absl::Status failure_;
  // A running beam's prompt and tokens, and what its sequence knows of their blocks.
  struct Running {
    SharedValue<std::vector<TokenId>> prompt;
    std::shared_ptr<HashedBlocks> hashed;
  };
  // Of the last step, first the request's. Bound: kBeamWidthMax (64).
  std::vector<Running> running_;
};

}  // namespace tandem::router
