// Scores a node by the fraction of the prompt whose KV it holds already: 1 = all of it.
// Thread safety: pure function.
#pragma once

#include <algorithm>

#include "router/placement/candidate.h"

namespace tandem::router {

inline double PrefixAffinityScorer(const LegNeeds& needs, const Candidate& candidate) {
  if (needs.prompt_tokens <= 0) return 0.0;
  return std::clamp(
      static_cast<double>(candidate.cached_tokens) / static_cast<double>(needs.prompt_tokens), 0.0,
      1.0);
}

}  // namespace tandem::router
