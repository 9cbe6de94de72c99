#include "cli/cluster/loading_bars.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/telemetry/progress_bar.h"

namespace tandem::cli {

std::string LoadingBars::Text(int columns) const {
  if (nodes_.empty()) return "";
  // The slowest node decides when the cluster is ready.
  int slowest = std::numeric_limits<int>::max();
  std::string each;
  for (const auto& [node, state] : nodes_) {
    slowest = std::min(slowest, state.percent);
    absl::StrAppend(&each, "  ", node, " ", state.stage);
  }
  return absl::StrCat("weights ", ProgressBar(slowest / 100.0), each)
      .substr(0, static_cast<size_t>(std::max(columns, 0)));
}

}  // namespace tandem::cli
