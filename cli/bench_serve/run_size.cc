#include "cli/bench_serve/run_size.h"

#include <algorithm>

namespace tandem::cli {

LoadOptions ProbeOptions(const LoadOptions& run) {
  LoadOptions probe = run;
  probe.requests = 0;
  probe.duration = kProbeTime;
  probe.arrivals.reset();
  probe.warmup = 0;
  probe.concurrency = run.concurrency == 0 ? 8 : std::min<int64_t>(run.concurrency, 64);
  return probe;
}

std::optional<double> AnswersPerSecond(const LoadResult& probe) {
  const auto answered = std::count_if(probe.records.begin(), probe.records.end(),
                                      [](const RequestRecord& record) { return record.ok(); });
  if (answered == 0 || probe.elapsed <= absl::ZeroDuration()) return std::nullopt;
  return static_cast<double>(answered) / absl::ToDoubleSeconds(probe.elapsed);
}

int64_t RequestsForRun(double answers_per_second, std::optional<double> arrivals_per_second) {
  const double rate =
      std::min(answers_per_second, arrivals_per_second.value_or(answers_per_second));
  const auto requests = static_cast<int64_t>(rate * absl::ToDoubleSeconds(kRunTime));
  return std::max(requests, kSizedRequestsMin);
}

}  // namespace tandem::cli
