// A filter that keeps nodes of the leg's role that take new work.
// Thread safety: pure function.
#pragma once

#include "router/placement/candidate.h"

namespace tandem::router {

inline bool AcceptsWork(const LegNeeds& needs, const Candidate& candidate) {
  return candidate.node->role == needs.role && !candidate.node->draining;
}

}  // namespace tandem::router
