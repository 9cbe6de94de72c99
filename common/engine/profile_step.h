// The step that engines run once at start-up to measure themselves: one prompt in blocks 0, 1, ...
// It has enough rows for every kernel to take its widest path, but no more than one context holds.
// Thread safety: a value, which must not be moved.
// Owner: the engine, during start-up.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/engine.h"

namespace tandem::engine {

class ProfileStep {
 public:
  ProfileStep(const EngineSpec& spec, int64_t max_batch_tokens)
      : tokens_(static_cast<size_t>(
            std::min({max_batch_tokens, int64_t{spec.context_tokens}, kRows}))) {
    slice_.num_new = static_cast<int64_t>(tokens_.size());
    for (int64_t i = 0; i < spec.layout.BlocksFor(slice_.num_new); ++i) {
      blocks_.emplace_back(static_cast<int32_t>(i));
    }
    slice_.tokens = tokens_;
    slice_.blocks = blocks_;
    slice_.sample = true;
    slice_.sampling = &sampling_;
  }
  ProfileStep(const ProfileStep&) = delete;
  ProfileStep& operator=(const ProfileStep&) = delete;

  int64_t num_blocks() const { return static_cast<int64_t>(blocks_.size()); }
  absl::Span<const SequenceSlice> slices() const { return absl::MakeConstSpan(&slice_, 1); }

 private:
  static constexpr int64_t kRows = 64;

  const std::vector<TokenId> tokens_;
  std::vector<BlockId> blocks_;
  const request::SamplingParams sampling_;
  SequenceSlice slice_;
};

}  // namespace tandem::engine
