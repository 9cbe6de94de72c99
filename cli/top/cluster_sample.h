// What `tandem top` knows of a cluster: the router's answers of one look, and what happened each
// second. Thread safety: values.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/top/node_rates.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct ClusterSample {
  absl::Time at;
  v1::GetStatusResponse status;
  v1::ListRequestsResponse requests;  // the oldest first
};

struct ClusterView {
  std::optional<ClusterSample> last;    // absent until the router has answered
  std::optional<ClusterSample> before;  // the router's own rates are differences of the two
  NodeRates nodes;                      // from all looks so far
  absl::Status error;                   // of a look after `last` that got no answer
  absl::Status requests_error;          // why `last` lists no requests: a key, as a rule

  // Takes the router's next answer. `requests_status`: whether it listed its requests.
  void Add(ClusterSample sample, const absl::Status& requests_status);
};

}  // namespace tandem::cli
