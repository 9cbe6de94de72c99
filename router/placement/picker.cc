#include "router/placement/picker.h"

#include <algorithm>

#include "common/base/check.h"

namespace tandem::router {

size_t PickMax(absl::Span<const double> scores) {
  TANDEM_CHECK(!scores.empty());
  return std::max_element(scores.begin(), scores.end()) - scores.begin();
}

size_t PickOfTwo(absl::Span<const double> scores, Random& random) {
  TANDEM_CHECK(!scores.empty());
  if (scores.size() == 1) return 0;
  size_t first = random.Below(scores.size());
  size_t second = random.Below(scores.size() - 1);
  if (second >= first) ++second;
  if (first > second) std::swap(first, second);
  return scores[second] > scores[first] ? second : first;
}

}  // namespace tandem::router
