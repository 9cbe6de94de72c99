// What a chaos run found: the outcome of each request, latencies by kind of fault, and violations.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/chaos/fault_plan.h"

namespace tandem::cli {

// One request, over all calls that its client made for it. Times are since the load began.
struct ChaosRequest {
  enum class End { kWhole, kCancelled, kMismatch, kGivenUp };

  std::string id;
  End end = End::kWhole;
  std::string what;  // kMismatch and kGivenUp: what happened
  int calls = 1;     // that the client made
  // Why its client asked again first, other than that there was no room; "" = it did not.
  std::string first_failure;
  int placements = 1;
  int64_t tokens = 0;
  int64_t lent_tokens = 0;  // of its KV that other nodes kept at a time
  bool split = false;       // its prompt is longer than a pool, and a prefill node computed it
  // The longest time without a token.
  absl::Duration pause_from, pause_to;

  // Whether something failed while it ran, and it ended whole nevertheless.
  bool recovered() const { return end == End::kWhole && (calls > 1 || placements > 1); }
  absl::Duration pause() const { return pause_to - pause_from; }
};

// What a request met that none may meet while nothing fails; "" = nothing. To be asked again
// because there was no room is allowed.
std::string WhyNotCalm(const ChaosRequest& request);

struct ChaosFindings {
  ChaosTopology topology;
  uint64_t seed = 0;
  absl::Duration ran;
  bool namespaces = false;
  std::vector<ChaosFault> faults;  // carried out
  // Of the same requests, while nothing failed.
  std::vector<ChaosRequest> calm;
  std::vector<ChaosRequest> requests;
  std::vector<std::string> leaks;    // still held ChaosCluster::kReleasedWithin after the end
  std::vector<std::string> crashes;  // processes that ended without a fault, or hang
};

struct ChaosReport {
  struct Latency {
    int64_t count = 0;
    double p50_ms = 0, p99_ms = 0, max_ms = 0;
  };
  struct Group {
    int64_t faults = 0;
    Latency added;  // over the calm median pause, of the requests that recovered from it
  };

  uint64_t seed = 0;
  double seconds = 0;
  bool namespaces = false;
  int64_t requests = 0, tokens = 0, whole = 0, cancelled = 0, recovered = 0;
  int64_t asked_again = 0;  // calls beyond each request's first
  // Whole requests part of whose KV other nodes kept at the end; of those, with prompts longer than
  // a pool that prefill nodes computed; and the recovered ones.
  int64_t lent = 0, lent_split = 0, lent_recovered = 0;
  double calm_pause_ms = 0;
  std::map<std::string, Group> groups;  // by GroupOf; "unknown": recovered from none of them
  std::vector<std::string> mismatches, given_up, leaks, crashes;
  // The slowest recoveries, by request id, slowest first: search the logs for them.
  std::vector<std::string> slowest;

  int64_t violations() const {
    return static_cast<int64_t>(mismatches.size() + given_up.size() + leaks.size() +
                                crashes.size());
  }
};

// Attributes a request's pause to one fault: of those that were active, or just over, during the
// pause, the one that began nearest to the pause's begin.
ChaosReport Summarize(const ChaosFindings& findings);
std::string ToTable(const ChaosReport& report);
std::string ToJson(const ChaosReport& report);

}  // namespace tandem::cli
