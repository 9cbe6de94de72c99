// A filter that drops nodes that refused or failed this sequence a moment ago.
// Thread safety: pure function.
#pragma once

#include "router/placement/candidate.h"

namespace tandem::router {

inline bool NotRecentlyFailed(const LegNeeds& needs, const Candidate& candidate) {
  if (needs.failed == nullptr) return true;
  for (const auto& [key, until] : *needs.failed)
    if (key == candidate.node->key && needs.now < until) return false;
  return true;
}

}  // namespace tandem::router
