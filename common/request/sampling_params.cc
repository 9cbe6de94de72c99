#include "common/request/sampling_params.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"

namespace tandem::request {
namespace {

constexpr double kPenaltyMax = 2.0;       // presence and frequency, as OpenAI's API bounds them
constexpr float kLogitBiasMax = 100;      // likewise
constexpr size_t kBadWordsMax = 1024;     // token sequences
constexpr size_t kBadWordTokensMax = 64;  // of each
constexpr size_t kStopStringsMax = 64;
constexpr size_t kStopStringBytesMax = 1024;

struct Range {
  double low, high;
  bool low_excluded = false;
};

// NaN is in no range.
absl::Status CheckRange(absl::string_view field, double value, Range range) {
  const bool above = range.low_excluded ? value > range.low : value >= range.low;
  if (above && value <= range.high && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", expected a number in ",
                                                 range.low_excluded ? "(" : "[", range.low, ", ",
                                                 range.high, "]"));
}

absl::Status CheckToken(absl::string_view field, TokenId token, int32_t vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": token ", token, ", expected one in [0, ", vocab_size, ")"));
}

absl::Status CheckTokens(absl::string_view field, absl::Span<const TokenId> tokens,
                         int32_t vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    RETURN_IF_ERROR(CheckToken(field, tokens[i], vocab_size));
    if (i > 0 && tokens[i] < tokens[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat(field, ": token ", tokens[i], " after ",
                                                     tokens[i - 1], ", expected ascending order"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const SamplingParams& params, int32_t vocab_size, int32_t logprobs_max) {
  constexpr double kAny = 1e30;
  RETURN_IF_ERROR(CheckRange("temperature", params.temperature, {0.0, kAny}));
  if (params.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k: ", params.top_k, ", expected >= 1, or 0 or -1 for off"));
  }
  RETURN_IF_ERROR(CheckRange("top_p", params.top_p, {0.0, 1.0, true}));
  RETURN_IF_ERROR(CheckRange("min_p", params.min_p, {0.0, 1.0}));
  RETURN_IF_ERROR(CheckRange("repetition_penalty", params.repetition_penalty, {0.0, kAny, true}));
  RETURN_IF_ERROR(
      CheckRange("presence_penalty", params.presence_penalty, {-kPenaltyMax, kPenaltyMax}));
  RETURN_IF_ERROR(
      CheckRange("frequency_penalty", params.frequency_penalty, {-kPenaltyMax, kPenaltyMax}));
  for (size_t i = 0; i < params.logit_bias.size(); ++i) {
    const auto& [token, bias] = params.logit_bias[i];
    RETURN_IF_ERROR(CheckToken("logit_bias", token, vocab_size));
    RETURN_IF_ERROR(CheckRange(absl::StrCat("logit_bias of token ", token), bias,
                               {-kLogitBiasMax, kLogitBiasMax}));
    if (i > 0 && token <= params.logit_bias[i - 1].first) {
      return absl::InvalidArgumentError(absl::StrCat("logit_bias: token ", token, " after ",
                                                     params.logit_bias[i - 1].first,
                                                     ", expected ascending order without repeats"));
    }
  }
  RETURN_IF_ERROR(CheckTokens("allowed_token_ids", params.allowed_token_ids, vocab_size));
  if (params.bad_words.size() > kBadWordsMax) {
    return absl::InvalidArgumentError(absl::StrCat("bad_words: ", params.bad_words.size(),
                                                   " token sequences, expected at most ",
                                                   kBadWordsMax));
  }
  for (size_t i = 0; i < params.bad_words.size(); ++i) {
    const std::vector<TokenId>& word = params.bad_words[i];
    if (word.empty() || word.size() > kBadWordTokensMax) {
      return absl::InvalidArgumentError(absl::StrCat("bad_words[", i, "]: ", word.size(),
                                                     " tokens, expected 1 to ", kBadWordTokensMax));
    }
    for (const TokenId token : word) {
      RETURN_IF_ERROR(CheckToken(absl::StrCat("bad_words[", i, "]"), token, vocab_size));
    }
  }
  if (params.logprobs.has_value() && (*params.logprobs < 0 || *params.logprobs > logprobs_max)) {
    return absl::InvalidArgumentError(
        absl::StrCat("logprobs: ", *params.logprobs, ", expected one in [0, ", logprobs_max, "]"));
  }
  return absl::OkStatus();
}

absl::Status Validate(const StopParams& params, int32_t vocab_size) {
  if (params.max_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens: ", params.max_tokens, ", expected >= 1"));
  }
  if (params.min_tokens < 0 || params.min_tokens > params.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_tokens: ", params.min_tokens,
                     ", expected one in [0, max_tokens = ", params.max_tokens, "]"));
  }
  if (params.stop.size() > kStopStringsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("stop: ", params.stop.size(), " strings, expected at most ", kStopStringsMax));
  }
  for (size_t i = 0; i < params.stop.size(); ++i) {
    if (params.stop[i].empty() || params.stop[i].size() > kStopStringBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat(
          "stop[", i, "]: ", params.stop[i].size(), " bytes, expected 1 to ", kStopStringBytesMax));
    }
  }
  return CheckTokens("stop_token_ids", params.stop_token_ids, vocab_size);
}

std::vector<TokenId> BannedTokens(const SamplingParams& params, const StopParams* stop,
                                  absl::Span<const TokenId> eos_token_ids,
                                  absl::Span<const TokenId> output) {
  std::vector<TokenId> banned;
  for (const std::vector<TokenId>& word : params.bad_words) {
    const size_t before = word.size() - 1;
    if (before > output.size()) continue;
    if (!std::equal(word.begin(), word.end() - 1, output.end() - before)) continue;
    banned.push_back(word.back());
  }
  // min_tokens others come before one that stops, as in vLLM and transformers.
  if (stop != nullptr && static_cast<int64_t>(output.size()) < stop->min_tokens) {
    banned.insert(banned.end(), stop->stop_token_ids.begin(), stop->stop_token_ids.end());
    if (!stop->ignore_eos) banned.insert(banned.end(), eos_token_ids.begin(), eos_token_ids.end());
  }
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  return banned;
}

FinishReason CheckStop(const StopParams& params, const std::vector<TokenId>& eos_token_ids,
                       TokenId token, int64_t output_tokens) {
  if (output_tokens >= params.min_tokens) {
    if (std::binary_search(params.stop_token_ids.begin(), params.stop_token_ids.end(), token)) {
      return FinishReason::kStop;
    }
    if (!params.ignore_eos &&
        std::find(eos_token_ids.begin(), eos_token_ids.end(), token) != eos_token_ids.end()) {
      return FinishReason::kStop;
    }
  }
  return output_tokens >= params.max_tokens ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace tandem::request
