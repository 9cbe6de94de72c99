// A trace whose prompts have a part of their tokens, with blocks that are as much smaller: for
// clusters that could not serve the whole trace. `tandem bench trace --shrink` asks a cluster for
// the same prompts.
// Thread safety: one thread uses a source.
#pragma once

#include <cstdint>
#include <memory>

#include "sim/trace/workload_source.h"

namespace tandem::sim {

inline constexpr int32_t kTraceShrinkMax = 32;  // a block still holds its name

// Whether prompts can have this part of their tokens: a power of two up to kTraceShrinkMax.
constexpr bool CanShrink(int64_t shrink) {
  return shrink >= 1 && shrink <= kTraceShrinkMax && kTraceBlockTokens % shrink == 0;
}
// The tokens of a prompt, and of a block, of a trace that is `shrink` times as small.
constexpr int64_t ShrunkTokens(int64_t tokens, int64_t shrink) {
  return (tokens + shrink - 1) / shrink;
}

// REQUIRES: CanShrink(shrink).
std::unique_ptr<WorkloadSource> ShrinkPrompts(std::unique_ptr<WorkloadSource> source,
                                              int32_t shrink);

}  // namespace tandem::sim
