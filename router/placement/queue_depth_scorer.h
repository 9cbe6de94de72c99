// How soon the node gets to the leg: 1 = nothing is before it. For a prefill leg, by prompt tokens
// waiting; for a decode leg, by sequences running and waiting.
#pragma once

#include <algorithm>

#include "router/placement/candidate.h"

namespace tandem::router {

// Tokens waiting at which a prefill node scores a half: about one long prompt.
inline constexpr double kPrefillTokensHalf = 2048;
// Sequences at which a decode node without a stated limit scores a half.
inline constexpr double kSequencesHalf = 16;

inline double QueueDepthScorer(const LegNeeds& needs, const Candidate& candidate) {
  const Node& node = *candidate.node;
  if (needs.role == v1::NODE_ROLE_PREFILL) {
    const auto waiting = static_cast<double>(std::max<int64_t>(node.prefill_tokens_waiting(), 0));
    return kPrefillTokensHalf / (kPrefillTokensHalf + waiting);
  }
  const auto sequences = static_cast<double>(std::max<int64_t>(node.sequences(), 0));
  if (node.max_sequences > 0) return std::clamp(1.0 - sequences / node.max_sequences, 0.0, 1.0);
  return kSequencesHalf / (kSequencesHalf + sequences);
}

}  // namespace tandem::router
