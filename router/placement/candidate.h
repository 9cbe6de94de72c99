// What filters and scorers look at: the needs of one leg, and one node that it could run on.
// Thread safety: values and pure functions; used on the core's strand.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/request/queue_order.h"
#include "router/fleet/node.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

// What one leg needs of a node.
struct LegNeeds {
  v1::NodeRole role = v1::NODE_ROLE_DECODE;
  int64_t prompt_tokens = 0;
  int64_t tokens_total = 0;  // the most the sequence can grow to on this node
  absl::Time now;
  // A prefill node may have this much to do before the leg; 0 = any amount.
  absl::Duration prefill_wait_max;
  request::Urgency urgency;  // its place among the prompts that a node computes
  // Nodes that refused or failed this sequence, each with the time until which it is avoided.
  const std::vector<std::pair<NodeKey, absl::Time>>* failed = nullptr;  // may be null
  // Nodes whose room is kept for sequences that have waited longer; may be null.
  const std::vector<NodeKey>* kept = nullptr;
};

struct Candidate {
  const Node* node = nullptr;
  int64_t cached_tokens = 0;  // of the prompt, by the prefix index; whole blocks
  ReadTokens stored;  // of cached_tokens: the last ones, in the node's storage (policy `cost`)

  int64_t uncached_tokens(const LegNeeds& needs) const {
    return needs.prompt_tokens - cached_tokens;
  }
};

// Whether the node can take the leg at all. A pure function.
using Filter = bool (*)(const LegNeeds& needs, const Candidate& candidate);
// How good the node is for the leg, in [0, 1]; 1 is best. A pure function.
using Scorer = double (*)(const LegNeeds& needs, const Candidate& candidate);

}  // namespace tandem::router
