// How long a fetch may take: the beginning of a prompt's KV, from a node that holds it. The node
// that fetches gives it up afterwards (common/node/prefix_fetch.h), so routers ask only for what
// they predict to come sooner (Fleet::Fetching). Thread safety: constants.
#pragma once

#include "absl/time/time.h"

namespace tandem::cost {

inline constexpr absl::Duration kFetchTimeMax = absl::Seconds(2);
// Routers ask for what is predicted to come in this part of it: predictions err.
inline constexpr double kFetchAimedShare = 0.5;

}  // namespace tandem::cost
