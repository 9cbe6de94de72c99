// A filter that keeps nodes whose pool and context could hold the whole sequence if they were
// empty. Thread safety: pure function.
#pragma once

#include "router/placement/candidate.h"

namespace tandem::router {

inline bool CouldEverFit(const LegNeeds& needs, const Candidate& candidate) {
  return needs.tokens_total <= candidate.node->capacity_tokens();
}

}  // namespace tandem::router
