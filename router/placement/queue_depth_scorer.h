// Scores a node by how soon it gets to the leg: 1 = nothing is ahead (Node::queue_fraction).
// Thread safety: pure function.
#pragma once

#include "router/placement/candidate.h"

namespace tandem::router {

inline double QueueDepthScorer(const LegNeeds&, const Candidate& candidate) {
  return 1.0 - candidate.node->queue_fraction();
}

}  // namespace tandem::router
