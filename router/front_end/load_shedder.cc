#include "router/front_end/load_shedder.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "common/rpc/retry_after.h"

namespace tandem::router {
namespace {

std::string Milliseconds(absl::Duration duration) {
  return absl::StrCat(absl::ToInt64Milliseconds(duration), " ms");
}

}  // namespace

LoadShedder::LoadShedder(const Options& options, RequestMetrics& metrics)
    : options_(options),
      metrics_(metrics),
      front_ends_{FrontEndState({options.delay, options.interval}),
                  FrontEndState({options.delay, options.interval})} {}

absl::Status LoadShedder::Admit(FrontEndKind front_end, absl::Duration waited, absl::Time now,
                                absl::FunctionRef<bool()> resumes) {
  const absl::Duration wait = waited + Predicted();
  metrics_.OnWait(wait);
  if (options_.delay <= absl::ZeroDuration()) return absl::OkStatus();
  absl::Duration longest;
  {
    FrontEndState& state = front_ends_[static_cast<size_t>(front_end)];
    absl::MutexLock lock(&state.mutex);
    state.rule.Observe(wait, now);
    longest = state.rule.waited_max();
  }
  if (wait <= longest || (wait <= kResumingFactor * longest && resumes())) return absl::OkStatus();
  return Refusal(wait, longest);
}

absl::Status LoadShedder::Refusal(absl::Duration wait, absl::Duration longest) {
  ++refused_;
  metrics_.OnRefused(RefusalReason::kOverload);
  // What waits now has then been taken.
  const int64_t seconds = std::clamp<int64_t>(
      static_cast<int64_t>(std::ceil(absl::ToDoubleSeconds(wait))), 1, kRetrySecondsMax);
  return rpc::WithRetryAfter(
      absl::UnavailableError(absl::StrCat(
          "this router is overloaded: a request would wait ", Milliseconds(wait),
          ", and the limit is ", Milliseconds(longest), "; try again later or ask another router")),
      seconds);
}

LoadShedder::Position LoadShedder::Enter(FrontEndKind front_end, absl::Time now) {
  return {front_end, waiting_++, now};
}

absl::Status LoadShedder::Dequeued(const Position& position, bool resumes, absl::Time now) {
  --waiting_;
  // A quotient of averages, not an average of quotients: long queues measure the service time best.
  waited_ns_ += (absl::ToDoubleNanoseconds(now - position.since) - waited_ns_) * kNewest;
  ahead_ += (static_cast<double>(position.ahead + 1) - ahead_) * kNewest;
  service_ns_ = waited_ns_ / ahead_;
  // Most requests have waited less than any limit. They take no lock.
  const absl::Duration waited = now - position.since;
  if (options_.delay <= absl::ZeroDuration() || waited <= options_.delay) return absl::OkStatus();
  FrontEndState& state = front_ends_[static_cast<size_t>(position.front_end)];
  absl::Duration longest;
  {
    absl::MutexLock lock(&state.mutex);
    longest = state.rule.waited_max();
  }
  if (waited <= (resumes ? kResumingFactor : 1) * kForecastMargin * longest)
    return absl::OkStatus();
  return Refusal(waited, longest);
}

}  // namespace tandem::router
