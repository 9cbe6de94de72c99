// A filter that keeps prefill nodes that are predicted to begin a new prompt within
// LegNeeds::prefill_wait_max.
// Thread safety: pure function.
#pragma once

#include "router/placement/candidate.h"

namespace tandem::router {

inline bool StartsInTime(const LegNeeds& needs, const Candidate& candidate) {
  return needs.prefill_wait_max <= absl::ZeroDuration() ||
         candidate.node->PredictedPrefillWait(needs.prompt_tokens, needs.urgency, needs.now) <=
             needs.prefill_wait_max;
}

}  // namespace tandem::router
