// The tokens that a constraint allows at one place, and what finding them may cost.
// Thread safety: plain values and pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "common/guided/state_graph.h"
#include "common/guided/vocabulary.h"

namespace tandem::guided {

// Bound on what one mask is charged (StateGraph::charged): some milliseconds of the engine's
// thread.
inline constexpr uint64_t kMaskWorkMax = 1'000'000;
// Bound on the graph's memory while a mask is computed.
inline constexpr size_t kGraphBytesMax = size_t{256} << 20;

struct TokenMask {
  std::vector<uint32_t> words;  // Vocabulary::mask_words()
  int32_t count = 0;            // of allowed tokens
};

// The tokens of `vocabulary` whose bytes the constraint allows after `config`.
// Errors: kInvalidArgument when that is charged more than kMaskWorkMax or takes the graph beyond
// kGraphBytesMax. The last step may exceed the first by what one configuration may take.
absl::StatusOr<std::shared_ptr<const TokenMask>> ComputeMask(StateGraph& graph, ConfigId config,
                                                             const Vocabulary& vocabulary);

}  // namespace tandem::guided
