// Implements Nearest (common/config/schema.h) by edit distance.
#include <algorithm>
#include <numeric>

#include "common/config/schema.h"

namespace tandem::config {
namespace {

// A longer name gets no suggestion, which bounds the work on hostile input.
constexpr size_t kNameLengthMax = 128;

// Insertions, deletions, replacements and swaps of neighbours that turn `a` into `b`.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replace = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replace});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before.swap(previous);
    previous.swap(current);
  }
  return previous[b.size()];
}

}  // namespace

std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates) {
  if (name.size() > kNameLengthMax) return "";
  std::string best;
  // A name that needs edits in more than a third of its letters is not a typo.
  size_t best_distance = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

}  // namespace tandem::config
