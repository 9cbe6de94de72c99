// Scores a node by the fraction of its pool that is free or reclaimable: 1 = all of it.
// Thread safety: pure function.
#pragma once

#include "router/placement/candidate.h"

namespace tandem::router {

inline double FreeBlocksScorer(const LegNeeds&, const Candidate& candidate) {
  return candidate.node->free_fraction();
}

}  // namespace tandem::router
