// How many rows of a prompt join a step.
// Thread safety: a pure function of its arguments.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"
#include "common/cost/step_cost.h"
#include "common/node/sequence.h"

namespace tandem::node {

struct ChunkLimits {
  int64_t rows_max = 0;
  // Of the step's time.
  absl::Duration step_goal = absl::InfiniteDuration();
  int32_t block_tokens = 0;
};

// The largest chunk of `sequence` that keeps the predicted time of a step of `shape` and the chunk
// within the goal. By bisection: more rows never take less time. The prediction's error is left
// out: on a busy machine it is as large as the prediction, and no chunk makes the machine's other
// work smaller.
inline int64_t PromptChunk(const Sequence& sequence, const cost::StepShape& shape,
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
  // One prompt advances by at least a block in each step.
  const int64_t least = shape.prompt_rows == 0 ? limits.block_tokens : 0;
  return std::max(fitting, std::min(least, longest));
}

}  // namespace tandem::node
