#include "common/request/bad_words.h"

#include <algorithm>

namespace tandem::request {

void SortBadWords(std::vector<std::vector<TokenId>>& words) {
  const auto before = [](const std::vector<TokenId>& a, const std::vector<TokenId>& b) {
    if (a.empty() || b.empty()) return a.size() < b.size();
    return std::lexicographical_compare(a.rbegin() + 1, a.rend(), b.rbegin() + 1, b.rend());
  };
  std::stable_sort(words.begin(), words.end(), before);
}

// [low, high) are the words whose `depth` tokens before the last end `output`. Those that have no
// others come first.
size_t FindBannedTokens(absl::Span<const std::vector<TokenId>> words,
                        absl::Span<const TokenId> output, std::vector<TokenId>& banned) {
  size_t steps = 0;
  auto low = words.begin(), high = words.end();
  for (size_t depth = 0; low != high; ++depth) {
    for (; low != high && low->size() == depth + 1; ++low, ++steps) banned.push_back(low->back());
    if (depth == output.size()) break;
    const TokenId next = output[output.size() - 1 - depth];
    const auto token_of = [&](const std::vector<TokenId>& word) {
      ++steps;
      return word[word.size() - 2 - depth];
    };
    low = std::partition_point(low, high, [&](const auto& word) { return token_of(word) < next; });
    high =
        std::partition_point(low, high, [&](const auto& word) { return token_of(word) <= next; });
  }
  return steps;
}

}  // namespace tandem::request
