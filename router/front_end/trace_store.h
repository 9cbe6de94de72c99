// Keeps how a router's last finished requests were served, for GetTrace, as bytes: a message takes
// several times as much memory, and one that is cleared and used again keeps the most that it ever
// took.
// Thread safety: any thread.
// Invariants: at most `requests_max` requests, of which the oldest go first; at most kTimingGapsMax
// gaps and kPlacementsMax placements per request, over all its sequences.
#pragma once

#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "router/core/client_event.h"
#include "router/core/router_actions.h"
#include "router/core/service_tier.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// One finished request in a list.
struct TraceSummary {
  std::string request_id;
  double submitted_s = 0;     // Unix time
  double total_ms = 0;        // of its longest sequence; 0 for a request that failed
  int64_t output_tokens = 0;  // of all its sequences
  bool failed = false;
};

class TraceStore {
 public:
  // How many traces, from the newest, one call of Recent looks at. Most of its time is under the
  // lock that ending requests take.
  static constexpr size_t kRecentScanMax = 1024;

  // Of a report of loans: some two hundred creditors.
  static constexpr size_t kLentBytesMax = 8192;

  explicit TraceStore(int64_t requests_max) : requests_max_(requests_max) {}

  // A sequence of the request ended. `submitted`: when the request was submitted. A later request
  // with the same id replaces the earlier one. `tier`: the request's; null = not known.
  void OnDone(const std::string& request_id, absl::Time submitted, const SequenceDone& done,
              const std::shared_ptr<const ServiceTier>& tier = nullptr);
  void OnFailed(const std::string& request_id, absl::Time submitted, const absl::Status& why,
                const std::shared_ptr<const ServiceTier>& tier = nullptr);

  // Adds the report to the trace of its sequence. It may come at any time: nothing happens if the
  // trace is gone or names another leg or node, or if the report is larger than kLentBytesMax.
  void OnLent(const LentReport& report);

  // kNotFound, saying how many requests are kept; kInternal where a node's name or word for a
  // transport is not UTF-8.
  absl::StatusOr<v1::RequestTrace> Find(const std::string& request_id) const;

  // Bytes that the traces take, beside a few hundred for each.
  int64_t bytes() const;

  // The newest requests whose ids begin with `prefix`, newest first, at most `count`.
  std::vector<TraceSummary> Recent(absl::string_view prefix, size_t count) const;

 private:
  struct Trace {
    TraceSummary summary;
    // A v1::RequestTrace without what the other members tell. More of it may be appended.
    std::string bytes;
    // Beside `bytes`, because a message that is not UTF-8 cannot be parsed from them.
    std::string error;
    std::shared_ptr<const ServiceTier> tier;
    // The decode legs of the sequences in `bytes`, in order. Bound: kSequencesMax (128).
    absl::InlinedVector<LegName, 1> legs;
    size_t gaps = 0, placements = 0;
    int32_t placements_dropped = 0;
  };
  using Traces = std::list<Trace>;
  Trace& At(const std::string& request_id, absl::Time submitted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t requests_max_;
  mutable absl::Mutex mutex_;
  // By when they were added. Bound: --traces (1,024).
  Traces traces_ ABSL_GUARDED_BY(mutex_);
  // Bound: --traces.
  absl::flat_hash_map<std::string, Traces::iterator> by_id_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::router
