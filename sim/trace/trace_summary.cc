#include "sim/trace/trace_summary.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::sim {

absl::StatusOr<int64_t> PrefixCeiling::OfNext(const TraceRequest& request) {
  const auto named = static_cast<int64_t>(request.blocks.size());
  const int64_t usable = std::min(named, (request.prompt_tokens - 1) / block_tokens_);
  int64_t held = 0;
  while (held < usable && seen_.contains(request.blocks[held])) ++held;
  const int64_t full = std::min(request.prompt_tokens / block_tokens_, named);
  seen_.insert(request.blocks.begin(), request.blocks.begin() + full);
  if (names() > kDistinctBlocksMax)
    return absl::ResourceExhaustedError(
        absl::StrCat("the trace names more than ", kDistinctBlocksMax, " blocks"));
  return held * block_tokens_;
}

absl::StatusOr<TraceSummary> Summarize(WorkloadSource& source, int64_t block_tokens) {
  TraceSummary summary{.block_tokens = block_tokens};
  PrefixCeiling ceiling(block_tokens);
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
    ASSIGN_OR_RETURN(const int64_t held, ceiling.OfNext(*request));
    summary.ceiling_tokens += held;
    const auto named = static_cast<int64_t>(request->blocks.size());
    unnamed += tokens / block_tokens - std::min(request->prompt_tokens / block_tokens, named);
  }
  if (summary.requests == 0) return absl::InvalidArgumentError("the trace has no request");
  summary.distinct_blocks = ceiling.names() + unnamed;
  return summary;
}

}  // namespace tandem::sim
