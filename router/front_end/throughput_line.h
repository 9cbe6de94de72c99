// A line of the log, every so often while the router has work: what it did since the last one.
//   throughput requests_per_s=3.2 prompt_tokens_per_s=118.1 cached_percent=41
//   output_tokens_per_s=96.4 running=4 queued=0
// An interval without work has no line.
// Thread safety: none; the thread that calls OnTick. Owner: the router's shell.
#pragma once

#include <cstdint>

#include "absl/time/time.h"
#include "router/core/running_requests.h"
#include "router/front_end/request_metrics.h"

namespace tandem::router {

class ThroughputLine {
 public:
  // `every` ≤ 0: no line. The first interval begins at `now`. `metrics` outlives this object.
  ThroughputLine(const RequestMetrics& metrics, absl::Duration every, absl::Time now)
      : metrics_(metrics), every_(every), last_(now) {}

  // Call it more often than `every`. `now_served`: the requests of this moment.
  void OnTick(absl::Time now, const RequestCounts& now_served);

 private:
  const RequestMetrics& metrics_;
  const absl::Duration every_;
  absl::Time last_;
  RequestMetrics::Totals before_;
};

}  // namespace tandem::router
