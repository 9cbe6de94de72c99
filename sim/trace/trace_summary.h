// What a trace asks for, and how much of it any cache could answer.
// Thread safety: Summarize is a pure function of the source; one thread uses a PrefixCeiling.
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sim/trace/workload_source.h"

namespace tandem::sim {

// Names that are remembered; more: kResourceExhausted.
inline constexpr int64_t kDistinctBlocksMax = 1 << 26;

// What one cache without limit would answer of each prompt, when prompts come in a trace's order.
class PrefixCeiling {
 public:
  // `block_tokens`: of the blocks that requests name.
  explicit PrefixCeiling(int64_t block_tokens) : block_tokens_(block_tokens) {}

  // Tokens of the next prompt that an earlier one began with, in full blocks and short of the
  // prompt's last token, which is always computed. Errors: kResourceExhausted.
  absl::StatusOr<int64_t> OfNext(const TraceRequest& request);
  int64_t names() const { return static_cast<int64_t>(seen_.size()); }

 private:
  const int64_t block_tokens_;
  // Bound: kDistinctBlocksMax, and one prompt's.
  absl::flat_hash_set<uint64_t> seen_;
};

struct TraceSummary {
  int64_t block_tokens = kTraceBlockTokens;
  int64_t requests = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;
  int64_t sequence_tokens_max = 0;  // the longest prompt with its answer
  absl::Duration last_arrival;
  int64_t distinct_blocks = 0;  // full blocks of prompts and answers, each name once
  int64_t ceiling_tokens = 0;   // PrefixCeiling's of all prompts

  double ceiling() const {
    return prompt_tokens > 0
               ? static_cast<double>(ceiling_tokens) / static_cast<double>(prompt_tokens)
               : 0;
  }
};

// Reads `source`, whose names are of blocks of `block_tokens` tokens, to its end. Errors: the
// source's; kInvalidArgument for a trace without requests.
absl::StatusOr<TraceSummary> Summarize(WorkloadSource& source,
                                       int64_t block_tokens = kTraceBlockTokens);

}  // namespace tandem::sim
