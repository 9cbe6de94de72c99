// A request whose processes are healthy finishes within a bound after the last fault.
// Thread safety: pure function.
#pragma once

#include <string>
#include <vector>

#include "sim/world/violations.h"

namespace tandem::sim {

// Generous beside every deadline of a simulated cluster: what is not done by then hangs.
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
