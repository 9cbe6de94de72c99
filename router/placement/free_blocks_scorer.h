// Scores a node by the fraction of its pool that is free or reclaimable: 1 = all of it.
// Thread safety: pure function.
#pragma once

#include <algorithm>

#include "router/placement/candidate.h"

namespace tandem::router {

inline double FreeBlocksScorer(const LegNeeds&, const Candidate& candidate) {
  const Node& node = *candidate.node;
  if (node.num_blocks <= 0) return 0.0;
  return std::clamp(
      static_cast<double>(node.blocks_available()) / static_cast<double>(node.num_blocks), 0.0,
      1.0);
}

}  // namespace tandem::router
