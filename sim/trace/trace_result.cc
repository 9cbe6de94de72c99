#include "sim/trace/trace_result.h"

#include <algorithm>

#include "common/base/check.h"

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

TierResult& TraceResult::TierNamed(absl::string_view name) {
  const auto found = std::find_if(tiers.begin(), tiers.end(),
                                  [&](const TierResult& tier) { return tier.name == name; });
  TANDEM_CHECK(found != tiers.end());
  return *found;
}

}  // namespace tandem::sim
