// Picks one of several scored choices.
// Thread safety: pure functions (the caller owns the Random).
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "common/runtime/random.h"

namespace tandem::router {

// Scores that differ by less count as equal. They come from load reports that are up to a heartbeat
// old, so a smaller difference says nothing.
inline constexpr double kScoreError = 0.001;

// The index of a choice with the highest score; of those within kScoreError of it, one at random,
// so that requests and routers that see the same reports do not all pick the same node. Draws from
// `random` only if there are several. REQUIRES: not empty.
size_t PickBest(absl::Span<const double> scores, Random& random);

}  // namespace tandem::router
