#include "cli/top/cluster_sample.h"

#include <utility>

namespace tandem::cli {

void ClusterView::Add(ClusterSample sample, const absl::Status& requests_status) {
  nodes.Add(sample.status, sample.at);
  error = absl::OkStatus();
  requests_error = requests_status;
  before = std::exchange(last, std::move(sample));
}

}  // namespace tandem::cli
