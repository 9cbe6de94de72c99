// Looks for places of a constraint where a mask would cost too much (docs/adr/0070). The thread
// that compiles a constraint does so, so that the constraint is refused before any node works for
// it.
//
// Which places a text can lead to is not decidable within any useful bound. So a trial does not
// follow texts from their beginning alone. It also begins at every state of the program, as if a
// text had led there: what it then computes is part of what an answer needs at that state, however
// deep behind other text the state lies.
// Thread safety: pure function.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/guided/program.h"
#include "common/guided/vocabulary.h"

namespace tandem::guided {

// Bounds on a trial's parts, in StateGraph::work: the search for texts with many readings, the
// masks of that search, and the masks of states that lead to many others.
inline constexpr uint64_t kSearchWorkMax = 8'000'000;
inline constexpr uint64_t kWideMasksWorkMax = 8'000'000;

// Two parts, each with a graph of its own:
// - A search through texts, from the constraint's beginning and from every state, those with the
//   most readings first. It refuses a text with more than kThreadsMax readings, and computes a mask
//   wherever readings have doubled (at most 11 masks).
// - Masks at the states from which the most other states are near.
// Equal programs and vocabularies give equal results.
// Returns whether the search has visited every place that a text can lead to.
// Errors: kInvalidArgument where a mask or a step exceeds its bound.
absl::StatusOr<bool> TryPlaces(const Program& program, const Vocabulary& vocabulary);

}  // namespace tandem::guided
