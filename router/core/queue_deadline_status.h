// Why a request that waited for placement until its deadline was not placed, for its client.
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "router/core/sequence_context.h"
#include "router/core/service_tier.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {

struct UnplacedPrompt {
  int64_t tokens = 0;        // to be placed: the prompt, and what was delivered before
  int64_t tokens_total = 0;  // the prompt with its longest answer
  const ServiceTier& tier;   // its request's
};

// `failure`: of the last attempt; none counts as no room. kUnavailable when no decode node takes
// work, or none of those that do could ever hold the request, otherwise kResourceExhausted.
absl::Status QueueDeadlineStatus(const SequenceContext& context, const UnplacedPrompt& prompt,
                                 std::optional<PlacementFailure> failure);

// Why a request is refused whose first token is predicted `after` its arrival, with the seconds
// after which another would be in time. Without them if the goal has passed, and nothing is
// predicted (`after` is 0).
absl::Status LateRefusalStatus(absl::Duration after, const ServiceTier& tier);

}  // namespace tandem::router
