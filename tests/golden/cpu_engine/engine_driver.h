// Drives an engine as a scheduler would, with one sequence at a time or several, for the CPU
// engine's tests. Thread safety: one thread.
#pragma once

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/cpu/cpu_engine.h"
#include "common/model/checkpoint.h"
#include "tests/testing/models.h"
#include "tests/testing/status_matchers.h"

namespace tandem::engine {

// A sequence and where its KV lies.
struct DrivenSequence {
  std::vector<TokenId> tokens;
  std::vector<BlockId> blocks;
  request::SamplingParams sampling;
  int64_t prompt_tokens = 0;
  int64_t computed = 0;
  int32_t index = 0;
};

// Rows [computed, computed + rows) of `sequence`, sampling when they reach its end.
inline SequenceSlice SliceOf(const DrivenSequence& sequence, int64_t rows) {
  SequenceSlice slice;
  slice.tokens = sequence.tokens;
  slice.num_computed = sequence.computed;
  slice.num_new = rows;
  slice.blocks = sequence.blocks;
  slice.sample = sequence.computed + rows == static_cast<int64_t>(sequence.tokens.size());
  slice.prompt_tokens = sequence.prompt_tokens;
  slice.sequence_index = sequence.index;
  slice.sampling = &sequence.sampling;
  return slice;
}

// Computes what `sequence` lacks in chunks of at most `chunk` rows and returns the token sampled.
inline absl::StatusOr<SampledToken> ComputeRest(Engine* engine, DrivenSequence* sequence,
                                                int64_t chunk) {
  std::vector<SampledToken> sampled;
  while (sequence->computed < static_cast<int64_t>(sequence->tokens.size())) {
    const int64_t rows =
        std::min(chunk, static_cast<int64_t>(sequence->tokens.size()) - sequence->computed);
    const SequenceSlice slice = SliceOf(*sequence, rows);
    auto result = engine->Step(absl::MakeConstSpan(&slice, 1), [](int) {});
    if (!result.ok()) return result.status();
    sampled = *std::move(result);
    sequence->computed += rows;
  }
  return sampled.at(0);
}

// Consecutive blocks from `first` for `tokens` tokens.
inline std::vector<BlockId> TakeBlocks(const EngineSpec& spec, int32_t first, int64_t tokens) {
  std::vector<BlockId> blocks;
  for (int64_t i = 0; i < spec.layout.BlocksFor(tokens); ++i) {
    blocks.emplace_back(first + static_cast<int32_t>(i));
  }
  return blocks;
}

}  // namespace tandem::engine
