// Refuses requests while the router is overloaded, so that the requests it takes are served in
// time. It decides before a request is parsed and tokenized, so a refusal costs little, and judges
// by how long the request has waited so far and will wait for the core.
//
//   kernel ──I/O thread──▶ Admit ─▶ parse, tokenize ─▶ Enter ──core's queue──▶ Dequeued
//   └────── waited ──────┘                             └── predicted at Admit ──┘
//
// The predicted wait is the number of requests in the core's queue times the recent service time of
// one of them (an EWMA). Admit refuses a request whose total wait is too long for OverloadRule. An
// admitted request is dispatched in time unless load rises in between; then Dequeued refuses it.
// Each front end has an OverloadRule of its own, because each sees a different part of the wait:
// how long gRPC's threads have held a call, for example, is not visible.
//
// Thread safety: Admit, Enter and OnRejected from any thread; Dequeued on the core's strand. Cost:
// a lock held for a few instructions. Owner: RouterServer.
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
    // OverloadRule's target. Zero: no request is refused.
    absl::Duration delay = absl::Milliseconds(100);
    absl::Duration interval = absl::Seconds(1);
  };
  enum class FrontEndKind { kHttp, kGrpc };
  // A request's place in the core's queue.
  struct Position {
    FrontEndKind front_end = FrontEndKind::kHttp;
    int64_t ahead = 0;  // requests in the queue before it
    absl::Time since;   // when it entered
  };

  // `metrics` outlives the shedder.
  LoadShedder(const Options& options, RequestMetrics& metrics);

  // The longest time after which a refused client is told to ask again.
  static constexpr int64_t kRetrySecondsMax = 60;

  // Whether a request that has waited for `waited` may go on. kUnavailable, with the wait, its
  // limit and the seconds after which to ask again (rpc::kRetryAfterPayload), if not. `resumes`:
  // whether the client has the beginning of the answer already; called only for a request that
  // would be refused. The limit for such a request is kResumingFactor times as long.
  absl::Status Admit(FrontEndKind front_end, absl::Duration waited, absl::Time now,
                     absl::FunctionRef<bool()> resumes);

  // The calling thread is about to put a request into the core's queue. Each call is followed by
  // Dequeued or OnRejected.
  Position Enter(FrontEndKind front_end, absl::Time now);
  // The core has taken the request from its queue. kUnavailable, as Admit's, if the request has
  // waited there for kForecastMargin times the current limit of its front end.
  absl::Status Dequeued(const Position& position, bool resumes, absl::Time now);
  // The queue was full: the request did not enter.
  void OnRejected() { --waiting_; }

  // Requests refused so far.
  int64_t refused() const { return refused_; }

 private:
  static constexpr int kResumingFactor = 4;
  // The prediction is too short for about half of the requests. The margin keeps those that it let
  // in only just: the work already spent on them would be lost.
  static constexpr double kForecastMargin = 1.5;
  // Weight of the newest request in the EWMAs below.
  static constexpr double kNewest = 1.0 / 64;

  struct FrontEndState {
    explicit FrontEndState(const OverloadRule::Options& options) : rule(options) {}
    absl::Mutex mutex;
    OverloadRule rule ABSL_GUARDED_BY(mutex);
  };

  // Counts a refusal and words it.
  absl::Status Refusal(absl::Duration wait, absl::Duration longest);
  // The wait of a request that enters the core's queue now.
  absl::Duration Predicted() const {
    return absl::Nanoseconds(waiting_.load() * service_ns_.load());
  }

  const Options options_;
  RequestMetrics& metrics_;
  std::array<FrontEndState, 2> front_ends_;  // by FrontEndKind
  std::atomic<int64_t> waiting_{0};          // requests in the core's queue
  // EWMAs over dequeued requests: time in the queue, and place in it. On the core's strand.
  double waited_ns_ = 0, ahead_ = 0;
  std::atomic<double> service_ns_{0};  // waited_ns_ / ahead_: time per queued request
  std::atomic<int64_t> refused_{0};
};

}  // namespace tandem::router
