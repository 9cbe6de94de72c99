#include "sim/trace/trace_result.h"

#include <algorithm>

namespace tandem::sim {

double TraceResult::max_over_mean() const {
  double most = 0, sum = 0;
  int64_t count = 0;
  const bool any_prefill =
      std::any_of(nodes.begin(), nodes.end(), [](const NodeResult& node) { return node.prefill; });
  for (const NodeResult& node : nodes) {
    if (node.prefill != any_prefill) continue;
    most = std::max(most, node.busy_s);
    sum += node.busy_s;
    ++count;
  }
  return sum > 0 ? most * static_cast<double>(count) / sum : 0;
}

}  // namespace tandem::sim
