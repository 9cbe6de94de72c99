// Picks one of several scored choices.
// Thread safety: pure functions (the caller owns the Random).
#pragma once

#include <cstddef>

#include "absl/types/span.h"
#include "common/runtime/random.h"

namespace tandem::router {

// The index of the highest score, the first of them on a tie. Callers list choices by ascending id,
// so ties go to the lower id. REQUIRES: not empty.
size_t PickMax(absl::Span<const double> scores);

// The better of two choices drawn at random (Mitzenmacher, "The power of two choices in randomized
// load balancing", 1996): several routers with the same stale view do not all pick the same node.
// Ties go to the lower index. REQUIRES: not empty.
size_t PickOfTwo(absl::Span<const double> scores, Random& random);

}  // namespace tandem::router
