// The outcome of each request of a load, and the statistics over all.
// Thread safety: plain values and pure functions. Times are counted from the beginning of the
// measurement.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tandem::cli {

// One request, as its client saw it.
struct RequestRecord {
  int64_t index = 0;
  absl::Duration intended;  // when it should have begun; latencies count from here
  absl::Duration sent;      // when it did
  std::optional<absl::Duration> first_token;
  absl::Duration ended;
  std::vector<float> gaps_ms;  // between parts of the answer that carry text
  int32_t prompt_tokens = 0;   // as the server counted, as are the next two
  int32_t output_tokens = 0;
  int32_t cached_tokens = 0;
  bool prefilled_apart = false;  // a prefill node computed the prompt; over gRPC, as the next
  int64_t host_memory_tokens = 0, disk_tokens = 0, fetched_tokens = 0;  // of the cached ones
  std::string error;    // its kind, such as "HTTP 429"; empty = answered
  std::string message;  // what the server or the system said
  bool cancelled = false;
  std::string service_tier;  // of one that named a tier: the one that served it, if that is known

  bool ok() const { return error.empty() && !cancelled; }
  // Whether the server refused it before anything of its answer came: HTTP 429 or 503, or their
  // kin of gRPC.
  bool refused() const;
  double ttft_ms() const;  // REQUIRES: first_token
  double e2e_ms() const { return absl::ToDoubleMilliseconds(ended - intended); }
  // Time for each token after the first; nullopt with fewer than two.
  std::optional<double> tpot_ms() const;
};

struct Distribution {
  int64_t count = 0;
  double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
};

// The value with `percent` of all at or below it (nearest rank). REQUIRES: `sorted` is, not empty.
double Percentile(absl::Span<const double> sorted, double percent);
// Of no values: all zero.
Distribution Describe(std::vector<double> values);

// The objectives that a request must meet to count as good, in milliseconds; 0 = no limit.
struct Objectives {
  double ttft_ms = 0;
  double itl_ms = 0;  // 99 % of the request's own gaps
  double e2e_ms = 0;

  bool any() const { return ttft_ms > 0 || itl_ms > 0 || e2e_ms > 0; }
};
bool Meets(const RequestRecord& record, const Objectives& objectives);

// Of the requests that named one service tier.
struct TierSummary {
  std::string name;
  // Requests are the sum of the others.
  int64_t requests = 0, answered = 0, refused = 0, failed = 0, cancelled = 0;
  Distribution ttft, itl;  // milliseconds, of answered requests
};

struct LoadSummary {
  double seconds = 0;
  int64_t requests = 0;  // all that began
  int64_t answered = 0;
  int64_t cancelled = 0;                                            // by the end of the run
  std::map<std::string, int64_t> errors;                            // by kind
  std::map<std::string, std::string> error_messages;                // the first of each kind
  int64_t prompt_tokens = 0, output_tokens = 0, cached_tokens = 0;  // of answered requests
  double requests_per_second = 0, output_tokens_per_second = 0, tokens_per_second = 0;
  Distribution ttft, itl, tpot, e2e;  // milliseconds, of answered requests
  Distribution lateness;              // sent - intended, of all
  Objectives objectives;
  int64_t good = 0;                // answered within the objectives
  double goodput = 0;              // good requests a second
  double good_share = 0;           // of answered and failed ones
  std::vector<TierSummary> tiers;  // by name; of requests that named one
};

// `elapsed`: from the first arrival to the end of the last request.
LoadSummary Summarize(absl::Span<const RequestRecord> records, absl::Duration elapsed,
                      const Objectives& objectives);

}  // namespace tandem::cli
