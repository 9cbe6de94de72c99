#include "cli/sim_trace/trace_flags.h"

#include <utility>

#include "common/base/status_macros.h"
#include "sim/trace/trace_file.h"

namespace tandem::cli {

void RegisterTrace(config::Schema& schema, sim::ArrivalOptions& arrivals) {
  const std::string group = "Load";
  schema.Add("speed", &arrivals.speed, "2 = requests arrive twice as fast as in the trace.",
             {.min = 0.001, .max = 100'000.0, .group = group});
  schema.Add("requests", &arrivals.requests_max, "How many requests of the trace to take; 0 = all.",
             {.min = 0, .group = group});
  schema.Add("spread", &arrivals.spread,
             "Traces round their times: spread requests of one moment evenly over the time until "
             "the next one.",
             {.group = group});
  schema.AllowPositionals("FILE", 1);
}

absl::StatusOr<std::string> TraceNamed(const std::vector<std::string>& positionals) {
  if (!positionals.empty()) return positionals[0];
  return absl::InvalidArgumentError(
      "expected FILE: a trace as JSON Lines (timestamp, input_length, output_length, hash_ids) or "
      "CSV, perhaps compressed with gzip");
}

absl::StatusOr<std::unique_ptr<sim::WorkloadSource>> OpenTraceAs(
    const std::string& path, const sim::ArrivalOptions& arrivals) {
  ASSIGN_OR_RETURN(std::unique_ptr<sim::WorkloadSource> trace, sim::OpenTrace(path));
  return sim::AdaptArrivals(std::move(trace), arrivals);
}

}  // namespace tandem::cli
