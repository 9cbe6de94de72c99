#include "common/engine/token_counts.h"

#include <algorithm>

namespace tandem::engine {

int64_t TokenCounts::Extend(absl::Span<const TokenId> tokens, int64_t prompt_tokens,
                            int32_t vocab_size) {
  const auto before = [](const kernels::TokenCount& a, const kernels::TokenCount& b) {
    return a.token < b.token;
  };
  const int64_t fresh = static_cast<int64_t>(tokens.size()) - counted_;
  const bool sorts = fresh > kInsertedMax;
  for (; counted_ < static_cast<int64_t>(tokens.size()); ++counted_) {
    const TokenId token = tokens[static_cast<size_t>(counted_)];
    if (token < 0 || token >= vocab_size) continue;
    kernels::TokenCount one = {.token = token};
    ++(counted_ < prompt_tokens ? one.prompt_count : one.output_count);
    if (sorts) {
      counts_.push_back(one);
      continue;
    }
    const auto place = std::lower_bound(counts_.begin(), counts_.end(), one, before);
    if (place == counts_.end() || place->token != token) {
      counts_.insert(place, one);
    } else {
      place->prompt_count += one.prompt_count;
      place->output_count += one.output_count;
    }
  }
  if (!sorts) return fresh;
  std::sort(counts_.begin(), counts_.end(), before);
  size_t kept = 0;  // entries of different tokens
  for (const kernels::TokenCount& count : counts_) {
    if (kept > 0 && counts_[kept - 1].token == count.token) {
      counts_[kept - 1].prompt_count += count.prompt_count;
      counts_[kept - 1].output_count += count.output_count;
    } else {
      counts_[kept++] = count;
    }
  }
  counts_.resize(kept);
  counts_.shrink_to_fit();
  return fresh;
}

}  // namespace tandem::engine
