// Checks that every request finishes within a bound after the last fault.
// Thread safety: a free function; the simulation's thread.
#pragma once

#include <string>
#include <vector>

#include "sim/world/violations.h"

namespace tandem::sim {

// Much longer than every deadline of a simulated cluster: a request that is not done by then hangs.
inline constexpr absl::Duration kProgressBound = absl::Seconds(30);

// `unfinished`: requests that have neither ended nor lost their client, `since` the last fault was
// over.
inline void CheckProgress(const std::vector<std::string>& unfinished, absl::Duration since,
                          RunLog& log) {
  for (const std::string& id : unfinished)
    log.Violate("progress", absl::StrCat(id, " is not done ", absl::FormatDuration(since),
                                         " after the last fault"));
}

}  // namespace tandem::sim
