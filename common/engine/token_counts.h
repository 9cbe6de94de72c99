// How often each token occurs in a sequence, for penalties. A sequence keeps its counts while it
// runs, so that a step counts the tokens that are new and not the whole history.
// Thread safety: none; plain data. Owner: the sequence, or the sampler for a caller without one.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "kernels/api/sampling.h"

namespace tandem::engine {

class TokenCounts {
 public:
  // Counts those of `tokens` that it has not counted. Tokens before `prompt_tokens` are prompt, the
  // others output; those outside of the vocabulary are left out. Returns how many it counted.
  // REQUIRES: `tokens` begins with those of the last call, and the other arguments are the same.
  int64_t Extend(absl::Span<const TokenId> tokens, int64_t prompt_tokens, int32_t vocab_size);
  // One for each distinct token, ascending: equal histories have equal counts.
  absl::Span<const kernels::TokenCount> counts() const { return counts_; }

 private:
  // Inserting a token moves those behind it; for more new ones it sorts once.
  static constexpr int64_t kInsertedMax = 16;

  // Bound: the vocabulary, and the tokens of the sequence.
  std::vector<kernels::TokenCount> counts_;
  int64_t counted_ = 0;  // tokens
};

}  // namespace tandem::engine
