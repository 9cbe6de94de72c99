// A closed- or open-loop HTTP client of one thread that costs little itself: prepared requests out,
// events counted as they come in, nothing parsed that is not needed to know that an answer is
// whole. Thread safety: none.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace tandem::bench {

struct LoadOptions {
  std::string address;  // host:port of this machine
  // The body of request number i.
  std::function<std::string(int64_t)> body;
  // How long its nodes have held request number i; called when its first token has come.
  std::function<absl::Duration(int64_t)> held;
  int64_t requests = 20000;
  int connections = 192;
  bool fresh = false;   // a connection for each request
  std::string api_key;  // empty: none
  double rate = 0;      // requests a second, at random times; 0 = as soon as one has ended
  uint64_t seed = 1;
};

struct LoadReport {
  int64_t requests = 0;
  int64_t refused = 0;  // of these, by 429 or 503; only at a rate, where there may be too many
  int64_t shed = 0;     // of these, by 503: the router had no time for them
  int64_t events = 0;   // of all answers, [DONE] included
  absl::Duration took;
  std::vector<double> first_token_ms;  // ascending
  std::vector<double> added_ms;        // of these, without what the nodes held; ascending
};

// The p-quantile of ascending values; 0 of none.
double Quantile(const std::vector<double>& ascending, double p);

// kInternal naming the first answer that was not whole.
absl::StatusOr<LoadReport> RunLoad(const LoadOptions& options);

// Opens `count` connections, sends each one request and waits until its first event has come; the
// sockets stay open, and unread. kInternal when one is refused.
absl::StatusOr<std::vector<int>> OpenStreams(const std::string& address,
                                             const std::function<std::string(int64_t)>& body,
                                             int count);

}  // namespace tandem::bench
