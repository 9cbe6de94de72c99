// Measures what a choice of weights and KV type costs in accuracy: perplexity, divergence and
// agreement over a text, against the same model with fp32 weights and cache. Thread safety: one
// thread. Owner: `tandem eval`.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/cpu/cpu_engine.h"
#include "common/model/checkpoint.h"

namespace tandem::engine {

struct EvaluationOptions {
  CpuEngineOptions engine;            // threads, isa, numerics; weights and kv_type are replaced
  std::vector<std::string> weights;   // values of CpuEngineOptions::weights
  std::vector<std::string> kv_types;  // each is combined with each of `weights`
  int64_t window_tokens = 512;        // the most tokens of context before a scored position
  int64_t positions = 2048;           // at most
  int64_t greedy_prompts = 4;         // prompts continued greedily
  int64_t greedy_tokens = 32;         // tokens of each continuation
};

struct EvaluationResult {
  std::string weights, kv_type;
  int64_t weight_bytes = 0;
  double perplexity = 0;
  double kl_mean = 0;        // of the baseline's distribution from this one, in nats
  double top_share = 0;      // positions with the baseline's most likely token
  double greedy_share = 0;   // continuation tokens before the first difference from the baseline
  int64_t greedy_equal = 0;  // continuations equal to their end
};

struct EvaluationReport {
  int64_t positions = 0;
  int64_t greedy_prompts = 0;
  EvaluationResult baseline;  // fp32 weights and cache
  std::vector<EvaluationResult> results;
};

// `tokens` is the text; `prefix` (the tokenizer's BOS) begins each window. Errors:
// kInvalidArgument for options out of range, a choice the CPU engine refuses, or fewer tokens than
// two.
absl::StatusOr<EvaluationReport> Evaluate(const model::Checkpoint& checkpoint,
                                          absl::Span<const TokenId> tokens,
                                          absl::Span<const TokenId> prefix,
                                          const EvaluationOptions& options);

}  // namespace tandem::engine
