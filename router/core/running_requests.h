// How many requests run, and what ListRequests tells of one.
// Thread safety: values; a pure function, called on the core's strand. Owner: RequestTable.
#pragma once

#include <cstdint>
#include <string>

#include "absl/time/time.h"
#include "router/core/sequence_machine.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

// The requests that were taken on and have not ended. Each counts once, however many sequences it
// has. Every front end, log line and metric that speaks of running or queued requests means these.
struct RequestCounts {
  int64_t running = 0;  // of which a sequence has a place on nodes
  int64_t queued = 0;   // of which none has
  int64_t total() const { return running + queued; }
};

// Which running requests to list.
struct RunningQuery {
  static constexpr int32_t kLimitMax = 100;
  static constexpr int32_t kLimitDefault = 20;
  // Sequences that one query looks at, so that it cannot hold the core's strand for long.
  static constexpr int64_t kExaminedMax = 4096;

  std::string id_prefix;  // of the requests' names; empty = all requests
  int32_t limit = kLimitDefault;
};

// All fields but `sequences`. `sequence`: the request's oldest that has not ended.
v1::RunningRequest DescribeRunning(const SequenceMachine& sequence, absl::Time now);

}  // namespace tandem::router
