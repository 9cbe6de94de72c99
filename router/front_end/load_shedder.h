// Refuses requests while the router has too little time for all that come: before they are parsed
// and tokenized, by how long they have waited and will wait (OverloadRule).
//
//   kernel ─I/O thread─▶ Admit ─▶ parse, tokenize ─▶ Enter ─late lane of the turn─▶ Taken
//   └──── waited ─────┘                              └───── expected at Admit ─────┘
//
// What the turn's lane will cost is what waits there, times what each of those took that were taken
// of late. Where that is too much nobody is sent to wait. What is sent comes in time, unless the
// turn has got more to do since: it is refused when it is taken, then.
// Each front_end has a rule of its own: what one of them cannot see (how long gRPC's threads have
// held a call) does not speak for the other.
//
// Thread safety: any thread, Taken in the router's turn. Cost: a lock for a few instructions.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/front_end/overload_rule.h"
#include "router/front_end/request_metrics.h"

namespace tandem::router {

class LoadShedder {
 public:
  struct Options {
    absl::Duration delay =
        absl::Milliseconds(100);  // OverloadRule's target; zero = nothing refused
    absl::Duration interval = absl::Seconds(1);
  };
  enum class FrontEndKind { kHttp, kGrpc };
  // A request's place in the lane.
  struct Place {
    FrontEndKind front_end = FrontEndKind::kHttp;
    int64_t ahead = 0;
    absl::Time since;
  };

  // `metrics` outlives the shedder.
  LoadShedder(const Options& options, RequestMetrics& metrics);

  // Whether a request that has waited for `waited` may go on. kUnavailable, saying how long
  // requests wait, if not. `resumes`: whether it is the rest of an answer that its client has in
  // part; asked only of what would be refused. Such are refused only after kResumingFactor times as
  // long.
  absl::Status Admit(FrontEndKind front_end, absl::Duration waited, absl::Time now,
                     absl::FunctionRef<bool()> resumes);

  // A request is about to enter the lane …
  Place Enter(FrontEndKind front_end, absl::Time now);
  // … and was taken from it, by who has the turn. kUnavailable, as Admit's, if it has waited there
  // for kForecastMargin times as long as those of its door may now: …
  absl::Status Taken(const Place& place, bool resumes, absl::Time now);
  // … or did not fit into the lane.
  void OnRejected() { --waiting_; }

  int64_t refused() const { return refused_; }

 private:
  static constexpr int kResumingFactor = 4;
  // Of requests that the door has let in just so, about half wait a little longer than was
  // expected. What was spent on them would be lost.
  static constexpr double kForecastMargin = 1.5;
  // The share that the newest request has in the averages below.
  static constexpr double kNewest = 1.0 / 64;

  struct FrontEndState {
    explicit FrontEndState(const OverloadRule::Options& options) : rule(options) {}
    absl::Mutex mutex;
    OverloadRule rule ABSL_GUARDED_BY(mutex);
  };

  absl::Status Refusal(absl::Duration wait, absl::Duration longest);
  // What a request that entered the lane now would wait there.
  absl::Duration Expected() const { return absl::Nanoseconds(waiting_.load() * each_ns_.load()); }

  const Options options_;
  RequestMetrics& metrics_;
  std::array<FrontEndState, 2> front_ends_;
  std::atomic<int64_t> waiting_{0};
  double waited_ns_ = 0, ahead_ = 0;  // of those taken of late, on average; in the turn
  std::atomic<double> each_ns_{0};    // the one by the other
  std::atomic<int64_t> refused_{0};
};

}  // namespace tandem::router
