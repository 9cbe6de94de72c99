// How many requests a run of `tandem bench serve` sends when the user names neither a number nor a
// time. A number that suits a large server takes minutes on a laptop. So a short probe measures
// what the server answers, and the run is sized to take about kRunTime from it.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "cli/bench_serve/load_run.h"

namespace tandem::cli {

// What a sized run takes, from its first request to its last answer.
inline constexpr absl::Duration kRunTime = absl::Seconds(20);
// The probe starts no request later than this. It lasts until its last request is answered.
inline constexpr absl::Duration kProbeTime = absl::Seconds(2);
// A run of fewer requests has no useful percentiles.
inline constexpr int64_t kSizedRequestsMin = 20;

// The probe: a closed loop of as many clients as the run's, 64 at most, for kProbeTime.
LoadOptions ProbeOptions(const LoadOptions& run);

// Requests a second that the probe's server answered; nullopt if it answered none.
std::optional<double> AnswersPerSecond(const LoadResult& probe);

// Requests that arrive at `arrivals_per_second` (nullopt: a closed loop), and of which the server
// answers `answers_per_second`, until the last is answered about kRunTime after the first arrived.
int64_t RequestsForRun(double answers_per_second, std::optional<double> arrivals_per_second);

}  // namespace tandem::cli
