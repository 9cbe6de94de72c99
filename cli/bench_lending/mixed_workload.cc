#include "cli/bench_lending/mixed_workload.h"

#include <algorithm>

namespace tandem::cli {

LoadRequest MixedWorkload::Next() {
  LoadRequest request;
  request.index = next_++;
  const auto long_ones = [&](int64_t requests) {
    return static_cast<int64_t>(static_cast<double>(requests) * options_.long_share + 0.5);
  };
  const bool is_long = long_ones(next_) > long_ones(next_ - 1);
  const int32_t tokens =
      DrawLength(is_long ? options_.long_tokens : options_.short_tokens, *random_);
  request.max_tokens = std::max(1, tokens / 2);
  for (int32_t i = request.max_tokens; i < tokens; ++i) {
    request.tokens.push_back(DrawLength(kAnyModelsTokenIds, *random_));
  }
  request.seed = options_.seed + static_cast<uint64_t>(request.index);
  return request;
}

}  // namespace tandem::cli
