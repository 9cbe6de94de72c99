// How tokens are chosen and when an answer ends: plain values, checked once at the router.
// Order of application and random numbers: docs/ARCHITECTURE.md, numerics contract.
// Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace tandem::request {

struct SamplingParams {
  double temperature = 1.0;  // >= 0; 0 = greedy
  int32_t top_k = 0;         // 0 = off
  double top_p = 1.0;        // (0, 1]
  double min_p = 0.0;        // [0, 1]
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;  // ascending by token
  std::vector<TokenId> allowed_token_ids;             // ascending; empty = all
  // A sequence's last token is not allowed after its others, among generated tokens.
  std::vector<std::vector<TokenId>> bad_words;
  std::optional<int32_t> logprobs;  // 0..20 top ones beside the chosen token's

  bool has_penalties() const {
    return repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0;
  }
};

struct StopParams {
  int32_t max_tokens = 0;  // >= 1 once validated
  int32_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<TokenId> stop_token_ids;  // ascending
  bool ignore_eos = false;
  bool include_stop_str_in_output = false;
};

// Top log-probabilities of a token: what clients may ask for, and what routers may ask of nodes
// (beam search needs twice its width).
inline constexpr int32_t kLogprobsMax = 20;
inline constexpr int32_t kLogprobsOfNodesMax = 256;

// kInvalidArgument naming the field, its value and what was expected. `vocab_size` bounds token
// ids.
absl::Status Validate(const SamplingParams& params, int32_t vocab_size,
                      int32_t logprobs_max = kLogprobsMax);
absl::Status Validate(const StopParams& params, int32_t vocab_size);

// Tokens that may not come next, ascending: the last ones of bad words that `output` (the tokens
// generated so far) leads up to, and what would stop the answer before min_tokens. `stop` may be
// nullptr.
std::vector<TokenId> BannedTokens(const SamplingParams& params, const StopParams* stop,
                                  absl::Span<const TokenId> eos_token_ids,
                                  absl::Span<const TokenId> output);

enum class FinishReason { kNone, kStop, kLength, kAborted, kError };

// Whether generating `token` as output number `output_tokens` (1 = the first) ends the answer, by
// token id and length alone; stop strings are the router's.
FinishReason CheckStop(const StopParams& params, const std::vector<TokenId>& eos_token_ids,
                       TokenId token, int64_t output_tokens);

}  // namespace tandem::request
