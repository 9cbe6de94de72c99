// Runs a load against a target: decides when to send which request, how many at a time, and when to
// end. Thread safety: a function; everything runs inside it, on the calling thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/bench_serve/arrivals.h"
#include "cli/bench_serve/load_target.h"
#include "cli/bench_serve/workload.h"
#include "cli/report/statistics.h"
#include "sim/trace/service_mix.h"

namespace tandem::cli {

struct LoadOptions {
  int64_t requests = 200;                              // 0 = as many as `duration` holds
  absl::Duration duration = absl::InfiniteDuration();  // no request begins later
  // Set: open loop, requests begin when they are due. Not set: closed loop, each of `concurrency`
  // clients sends its next request when its last one is answered.
  std::optional<ArrivalOptions> arrivals;
  // The same with given gaps: from each request to the next one, the first one's before it; nullopt
  // ends the load. `arrivals` does not count then.
  std::function<std::optional<absl::Duration>()> next_gap;
  int64_t concurrency = 8;  // open loop: the most requests in flight; 0 = kInFlightMax
  int64_t warmup = 0;       // requests before the measurement, not counted
  absl::Duration timeout = absl::Seconds(300);
  uint64_t seed = 1;
  sim::ServiceMix service_mix;  // the tiers that requests name; empty = none
};
inline constexpr int64_t kInFlightMax = 60'000;
// Gaps recorded over a whole run; the ITL figures leave out later ones.
inline constexpr int64_t kGapsMax = 50'000'000;

struct LoadProgress {
  absl::Duration elapsed;
  int64_t begun = 0, ended = 0, failed = 0, in_flight = 0;
  int64_t texts = 0;  // parts of answers that came
};

struct LoadHooks {
  std::function<bool()> should_stop;                     // asked every tick
  std::function<void(const LoadProgress&)> on_progress;  // every tick of the measurement
};

struct LoadResult {
  std::vector<RequestRecord> records;
  absl::Duration elapsed;
  bool interrupted = false;
};

// Returns when all requests have ended; when should_stop returns true, cancels those in flight. An
// error only when no request of the warm-up was answered.
absl::StatusOr<LoadResult> RunLoad(const LoadOptions& options, boost::asio::io_context& context,
                                   LoadTarget& target, Workload& workload, const LoadHooks& hooks);

}  // namespace tandem::cli
