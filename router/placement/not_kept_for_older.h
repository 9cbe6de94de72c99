// A filter that drops nodes whose room is kept for sequences that have waited for it longer.
// Thread safety: pure function.
#pragma once

#include <algorithm>

#include "router/placement/candidate.h"

namespace tandem::router {

inline bool NotKeptForOlder(const LegNeeds& needs, const Candidate& candidate) {
  return needs.kept == nullptr || std::find(needs.kept->begin(), needs.kept->end(),
                                            candidate.node->key) == needs.kept->end();
}

}  // namespace tandem::router
