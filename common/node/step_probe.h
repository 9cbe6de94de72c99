// Measures a few small engine steps when a node starts, so that its cost model predicts the first
// request's steps.
// Thread safety: a function; the engine's owner calls it before the engine thread starts.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/cost/step_cost.h"
#include "common/engine/engine.h"
#include "common/runtime/clock.h"

namespace tandem::node {

// Runs four steps of at most 32 rows (and one that only warms caches) over the engine's first
// blocks, up to eight times each while that takes less than 0.3 s, and fits a StepCost to the least
// time of each. Times that contradict each other are lowered: a busy machine makes steps longer,
// never shorter. A node that no router sends prompts to, because they seem to take long there,
// would never learn better. Knows nothing, and runs nothing, when the context or the blocks do not
// hold two tokens. REQUIRES: AllocateKv succeeded; no block is in use.
// Errors: as Engine::Step.
absl::StatusOr<cost::StepCost> ProbeStepCost(engine::Engine& engine, int64_t max_batch_tokens,
                                             const Clock& clock);

// The cost of steps whose times are known, as a node's of simulated times are: `clock` predicts
// them. Runs no step.
cost::StepCost KnownStepCost(const cost::StepProfile& clock);

}  // namespace tandem::node
