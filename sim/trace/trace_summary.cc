#include "sim/trace/trace_summary.h"

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::sim {

absl::StatusOr<TraceSummary> Summarize(WorkloadSource& source, int64_t block_tokens) {
  TraceSummary summary{.block_tokens = block_tokens};
  // Bound: kDistinctBlocksMax.
  absl::flat_hash_set<uint64_t> seen;
  int64_t unnamed = 0;
  while (true) {
    ASSIGN_OR_RETURN(const std::optional<TraceRequest> request, source.Next());
    if (!request.has_value()) break;
    ++summary.requests;
    summary.prompt_tokens += request->prompt_tokens;
    summary.output_tokens += request->output_tokens;
    const int64_t tokens = request->prompt_tokens + request->output_tokens;
    summary.sequence_tokens_max = std::max(summary.sequence_tokens_max, tokens);
    summary.last_arrival = request->at;
    const int64_t usable = (request->prompt_tokens - 1) / block_tokens;
    int64_t held = 0;
    const auto named = static_cast<int64_t>(request->blocks.size());
    while (held < std::min(usable, named) && seen.contains(request->blocks[held])) ++held;
    summary.ceiling_tokens += held * block_tokens;
    const int64_t full = std::min(request->prompt_tokens / block_tokens, named);
    seen.insert(request->blocks.begin(), request->blocks.begin() + full);
    unnamed += tokens / block_tokens - full;
    if (static_cast<int64_t>(seen.size()) > kDistinctBlocksMax)
      return absl::ResourceExhaustedError(
          absl::StrCat("the trace names more than ", kDistinctBlocksMax, " blocks"));
  }
  if (summary.requests == 0) return absl::InvalidArgumentError("the trace has no request");
  summary.distinct_blocks = static_cast<int64_t>(seen.size()) + unnamed;
  return summary;
}

}  // namespace tandem::sim
