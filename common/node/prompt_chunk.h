// How many rows of prompts join a step, and whether prompts may wait for one that has room.
//
// A step beside generated rows takes as many prompt rows as fit into its goal. If less than a block
// fits, it takes those few or none as long as every prompt has time left (PromptMayWait), and then
// a block. A prompt may spend half of its time on waiting. The rest is reserved, because
// predictions err and other prompts arrive: where all of it was spent, first tokens came too late
// (docs/adr/0117).
//
// Every wait is bounded: by the due time, which counts for request::kDueMax at most; by
// kWaitWithoutDue where there is none; and by kStepsPassedMax whatever the clock says.
//
// Thread safety: pure functions of their arguments.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "common/cost/step_cost.h"
#include "common/node/sequence.h"
#include "common/request/queue_order.h"

namespace tandem::node {

// How long a prompt waits that has no due time: as one that is due four seconds after it arrived.
inline constexpr absl::Duration kWaitWithoutDue = absl::Seconds(2);
// Steps without room for a block that a prompt lets pass.
inline constexpr int32_t kStepsPassedMax = 4096;

struct ChunkLimits {
  int64_t rows_max = 0;
  // Of the step's time.
  absl::Duration step_goal = absl::InfiniteDuration();
};

// The largest chunk of `sequence` that keeps the predicted time of a step of `shape` and the chunk
// within the goal; 0 if no row does. By bisection: more rows never take less time. The prediction's
// error is left out: on a busy machine it is as large as the prediction, and no chunk makes the
// machine's other work smaller.
inline int64_t FittingRows(const Sequence& sequence, const cost::StepShape& shape,
                           const cost::StepCost& step_cost, const ChunkLimits& limits) {
  const int64_t longest = std::min(sequence.remaining(), limits.rows_max);
  if (limits.step_goal == absl::InfiniteDuration() || shape.generated_rows == 0) return longest;
  const double goal_us = absl::ToDoubleMicroseconds(limits.step_goal);
  const auto fits = [&](int64_t rows) {
    cost::StepShape with = shape;
    with.Add(sequence.num_computed, rows, rows == sequence.remaining());
    return step_cost.samples() > 0 && step_cost.Predict(with).us <= goal_us;
  };
  if (fits(longest)) return longest;
  int64_t fitting = 0, above = longest;
  while (above - fitting > 1) {
    const int64_t middle = fitting + (above - fitting) / 2;
    (fits(middle) ? fitting : above) = middle;
  }
  return fitting;
}

// Whether the prompt may let a step pass at `now`, if computing what is before it and its own rest
// then takes `computing`. Never one whose answer has begun: its client waits for the next token.
inline bool PromptMayWait(const Sequence& sequence, absl::Duration computing, absl::Time now) {
  const bool answers = sequence.rebuild != nullptr || sequence.input.delivered_tokens > 0 ||
                       std::ssize(sequence.tokens) > sequence.prompt_tokens;
  if (answers || sequence.steps_passed >= kStepsPassedMax) return false;
  const absl::Duration due = sequence.input.first_token_within;
  const absl::Duration wait =
      due == absl::InfiniteDuration() ? kWaitWithoutDue : std::min(due, request::kDueMax) / 2;
  return now + computing <= sequence.input.arrived + wait;
}

}  // namespace tandem::node
