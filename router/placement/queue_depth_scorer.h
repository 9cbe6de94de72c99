// Scores a node by how soon it gets to the leg: 1 = nothing is ahead. For a prefill leg it counts
// prompt tokens that wait; for a decode leg, sequences that run or wait.
// Thread safety: pure function.
#pragma once

#include <algorithm>

#include "router/placement/candidate.h"

namespace tandem::router {

// With so many tokens waiting, a prefill node scores 0.5: about one long prompt.
inline constexpr double kPrefillTokensHalf = 2048;
// With so many sequences, a decode node that states no limit scores 0.5.
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
