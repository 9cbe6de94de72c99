#include "router/front_end/throughput_line.h"

#include <cmath>

#include "common/telemetry/log.h"

namespace tandem::router {

void ThroughputLine::OnTick(absl::Time now, const RequestCounts& now_served) {
  if (every_ <= absl::ZeroDuration() || now < last_ + every_) return;
  const RequestMetrics::Totals totals = metrics_.totals();
  const double seconds = absl::ToDoubleSeconds(now - last_);
  const RequestMetrics::Totals before = before_;
  last_ = now;
  before_ = totals;
  const double output = totals.output_tokens - before.output_tokens;
  const double requests = totals.requests - before.requests;
  if (output == 0 && requests == 0 && now_served.total() == 0) return;
  const auto per_second = [seconds](double count) { return std::round(10 * count / seconds) / 10; };
  const double prompt = totals.prompt_tokens - before.prompt_tokens;
  const double cached = totals.cached_tokens - before.cached_tokens;
  Log(LogLevel::kInfo, "throughput",
      {{"requests_per_s", per_second(requests)},
       {"prompt_tokens_per_s", per_second(prompt)},
       {"cached_percent", prompt > 0 ? std::round(100 * cached / prompt) : 0.0},
       {"output_tokens_per_s", per_second(output)},
       {"running", now_served.running},
       {"queued", now_served.queued}});
}

}  // namespace tandem::router
