// How tokens are chosen and when an answer ends, as plain values. The router checks them once, and
// the nodes compute with them. common/request/parameter_table.h describes every member: its name,
// its range, what it does. The order in which a sampler applies them and the random numbers it
// draws: docs/NUMERICS.md.
// Thread safety: plain values and pure functions. Owner: the request.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/ids.h"

namespace tandem::request {

inline constexpr double kPenaltyMax = 2.0;    // presence and frequency, as OpenAI's API bounds them
inline constexpr double kLogitBiasMax = 100;  // likewise
inline constexpr size_t kBadWordsMax = 1024;  // token sequences
inline constexpr size_t kBadWordTokensMax = 64;  // of each
inline constexpr size_t kStopStringsMax = 64;
inline constexpr size_t kStopStringBytesMax = 1024;
// Top log-probabilities of a token: what clients may ask for, and what routers may ask of nodes
// (beam search needs twice its width).
inline constexpr int32_t kLogprobsMax = 20;
inline constexpr int32_t kLogprobsOfNodesMax = 256;

// A default is the value that changes nothing.
struct SamplingParams {
  double temperature = 1.0;  // 0 = greedy
  int32_t top_k = 0;         // 0 = off
  double top_p = 1.0;
  double min_p = 0.0;
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  uint64_t seed = 0;
  std::vector<std::pair<TokenId, float>> logit_bias;  // ascending by token, no token twice
  std::vector<TokenId> allowed_token_ids;             // ascending; empty = all
  // Of each the last token must not follow the others, among generated ones. See SortBadWords.
  std::vector<std::vector<TokenId>> bad_words;
  std::optional<int32_t> logprobs;  // top ones beside the chosen token's

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

// Checks every parameter against its row in the table. `vocab_size` bounds token ids;
// `logprobs_max` stands for the table's bound of `logprobs`. kInvalidArgument names the first
// faulty parameter, its value and what was expected: "top_p: 1.5, expected a number in [0, 1]".
absl::Status Validate(const SamplingParams& params, int32_t vocab_size,
                      int32_t logprobs_max = kLogprobsMax);
absl::Status Validate(const StopParams& params, int32_t vocab_size);

// The name of the first parameter that is not at its default and that a beam search would ignore;
// "" when there is none. Beam search follows the model's own distribution.
absl::string_view FirstUnusedByBeams(const SamplingParams& sampling, const StopParams& stop);

// Tokens that must not come next, ascending and without repeats. These are the last tokens of bad
// words (SortBadWords) whose other tokens end `output` (the tokens generated so far), and, before
// min_tokens, every token that would stop the answer. `stop` may be nullptr.
std::vector<TokenId> BannedTokens(const SamplingParams& params, const StopParams* stop,
                                  absl::Span<const TokenId> eos_token_ids,
                                  absl::Span<const TokenId> output);

enum class FinishReason { kNone, kStop, kLength, kAborted, kError };

// Whether generating `token` as output number `output_tokens` (1 = the first) ends the answer.
// Looks at token ids and the length alone: the router looks for stop strings.
FinishReason CheckStop(const StopParams& params, const std::vector<TokenId>& eos_token_ids,
                       TokenId token, int64_t output_tokens);

}  // namespace tandem::request
