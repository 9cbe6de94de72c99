// What a trace asks for, and how much of it any cache could answer.
// Thread safety: a pure function of the source.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "sim/trace/workload_source.h"

namespace tandem::sim {

struct TraceSummary {
  int64_t block_tokens = kTraceBlockTokens;
  int64_t requests = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;
  int64_t sequence_tokens_max = 0;  // the longest prompt with its answer
  absl::Duration last_arrival;
  int64_t distinct_blocks = 0;  // full blocks of prompts and answers, each name once
  // Tokens of prompts that an earlier prompt began with, in full blocks and short of the prompt's
  // last token, which is always computed: what one cache without limit would answer.
  int64_t ceiling_tokens = 0;

  double ceiling() const {
    return prompt_tokens > 0
               ? static_cast<double>(ceiling_tokens) / static_cast<double>(prompt_tokens)
               : 0;
  }
};

// Names that are remembered; more: kResourceExhausted.
inline constexpr int64_t kDistinctBlocksMax = 1 << 26;

// Reads `source`, whose names are of blocks of `block_tokens` tokens, to its end. Errors: the
// source's; kInvalidArgument for a trace without requests.
absl::StatusOr<TraceSummary> Summarize(WorkloadSource& source,
                                       int64_t block_tokens = kTraceBlockTokens);

}  // namespace tandem::sim
