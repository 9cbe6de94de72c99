#include "router/placement/picker.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::router {

size_t PickBest(absl::Span<const double> scores, Random& random) {
  TANDEM_CHECK(!scores.empty());
  const double least = *std::max_element(scores.begin(), scores.end()) - kScoreError;
  const auto is_best = [least](double score) { return score >= least; };
  const auto count = static_cast<uint64_t>(std::count_if(scores.begin(), scores.end(), is_best));
  uint64_t skipped = count == 1 ? 0 : random.Below(count);
  for (size_t i = 0; i < scores.size(); ++i)
    if (is_best(scores[i]) && skipped-- == 0) return i;
  return 0;
}

}  // namespace tandem::router
