// What `tandem top` knows of a cluster: the router's answers of one look, and of the look before.
// Thread safety: values.
#pragma once

#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tandem/v1/client.pb.h"

namespace tandem::cli {

struct ClusterSample {
  absl::Time at;
  v1::GetStatusResponse status;
  v1::ListRequestsResponse requests;  // the oldest first
};

struct ClusterView {
  std::optional<ClusterSample> last;    // absent until the router has answered
  std::optional<ClusterSample> before;  // rates are differences of the two
  absl::Status error;                   // of a look after `last` that got no answer
  absl::Status requests_error;          // why `last` lists no requests: a key, as a rule
};

}  // namespace tandem::cli
