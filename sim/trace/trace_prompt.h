// The tokens of a trace's prompts. Traces name blocks and hold no text; tokens are made up so that
// two prompts begin alike exactly as far as the trace says.
// Thread safety: a pure function.
#pragma once

#include <vector>

#include "common/base/ids.h"
#include "sim/trace/workload_source.h"

namespace tandem::sim {

// Made-up tokens are below this.
inline constexpr int32_t kTraceVocabSize = 1 << 17;

// [request.prompt_tokens]. Each block begins with its name, written as tokens.
std::vector<TokenId> MakePrompt(const TraceRequest& request,
                                int64_t block_tokens = kTraceBlockTokens);

}  // namespace tandem::sim
