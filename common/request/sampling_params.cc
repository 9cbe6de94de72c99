#include "common/request/sampling_params.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/request/bad_words.h"
#include "common/request/parameter_table.h"

namespace tandem::request {
namespace {

// Bounds that depend on the model or on who asks.
struct Limits {
  int32_t vocab_size = 0;
  int32_t logprobs_max = kLogprobsMax;
};

absl::Status OutOfRange(absl::string_view field, double value, const Range& range) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": ", value, ", expected a number in ",
                                                 range.low_excluded ? "(" : "[", range.low, ", ",
                                                 range.high, "]"));
}

absl::Status CheckToken(absl::string_view field, TokenId token, int32_t vocab_size) {
  if (token >= 0 && token < vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": token ", token, ", expected one in [0, ", vocab_size, ")"));
}

// One overload for each type that a parameter can have.

absl::Status Check(const Description& about, double value, const Limits& /*limits*/) {
  if (about.range.Contains(value)) return absl::OkStatus();
  return OutOfRange(about.name, value, about.range);
}

absl::Status Check(const Description& about, int32_t value, const Limits& /*limits*/) {
  if (about.range.Contains(value)) return absl::OkStatus();
  if (!about.expected.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(about.name, ": ", value, ", expected ", about.expected));
  }
  if (about.range.high == Range::kUnbounded) {
    return absl::InvalidArgumentError(
        absl::StrCat(about.name, ": ", value, ", expected >= ", about.range.low));
  }
  return absl::InvalidArgumentError(absl::StrCat(about.name, ": ", value, ", expected one in [",
                                                 about.range.low, ", ", about.range.high, "]"));
}

// Only `logprobs` has this type: nodes take more of them than clients may ask for.
absl::Status Check(const Description& about, const std::optional<int32_t>& value,
                   const Limits& limits) {
  if (!value.has_value()) return absl::OkStatus();
  Description bounded = about;
  bounded.range.high = limits.logprobs_max;
  return Check(bounded, *value, limits);
}

absl::Status Check(const Description&, uint64_t, const Limits&) { return absl::OkStatus(); }
absl::Status Check(const Description&, bool, const Limits&) { return absl::OkStatus(); }

absl::Status Check(const Description& about, const std::vector<TokenId>& tokens,
                   const Limits& limits) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    RETURN_IF_ERROR(CheckToken(about.name, tokens[i], limits.vocab_size));
    if (i > 0 && tokens[i] < tokens[i - 1]) {
      return absl::InvalidArgumentError(absl::StrCat(about.name, ": token ", tokens[i], " after ",
                                                     tokens[i - 1], ", expected ascending order"));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const Description& about, const std::vector<std::pair<TokenId, float>>& biases,
                   const Limits& limits) {
  for (size_t i = 0; i < biases.size(); ++i) {
    const auto& [token, bias] = biases[i];
    RETURN_IF_ERROR(CheckToken(about.name, token, limits.vocab_size));
    if (!about.range.Contains(bias)) {
      return OutOfRange(absl::StrCat(about.name, " of token ", token), bias, about.range);
    }
    if (i > 0 && token <= biases[i - 1].first) {
      return absl::InvalidArgumentError(absl::StrCat(about.name, ": token ", token, " after ",
                                                     biases[i - 1].first,
                                                     ", expected ascending order without repeats"));
    }
  }
  return absl::OkStatus();
}

// `entries` and `units` name what the list and its entries consist of: "strings" of "bytes".
template <typename Entry>
absl::Status CheckList(const Description& about, const std::vector<Entry>& list,
                       absl::string_view entries, absl::string_view units) {
  const ListBounds& bounds = about.list;
  if (list.size() > bounds.entries_max) {
    return absl::InvalidArgumentError(absl::StrCat(about.name, ": ", list.size(), " ", entries,
                                                   ", expected at most ", bounds.entries_max));
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i].size() < bounds.entry_size_min || list[i].size() > bounds.entry_size_max) {
      return absl::InvalidArgumentError(absl::StrCat(about.name, "[", i, "]: ", list[i].size(), " ",
                                                     units, ", expected ", bounds.entry_size_min,
                                                     " to ", bounds.entry_size_max));
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const Description& about, const std::vector<std::vector<TokenId>>& sequences,
                   const Limits& limits) {
  RETURN_IF_ERROR(CheckList(about, sequences, "token sequences", "tokens"));
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (const TokenId token : sequences[i]) {
      if (token >= 0 && token < limits.vocab_size) continue;
      return CheckToken(absl::StrCat(about.name, "[", i, "]"), token, limits.vocab_size);
    }
  }
  return absl::OkStatus();
}

absl::Status Check(const Description& about, const std::vector<std::string>& texts,
                   const Limits& /*limits*/) {
  return CheckList(about, texts, "strings", "bytes");
}

// The rows whose values `params` holds.
template <typename Params>
absl::Status CheckRows(const Params& params, const Limits& limits) {
  absl::Status status;
  ForEachParameter([&](const auto& row) {
    using Row = std::decay_t<decltype(row)>;
    if constexpr (std::is_same_v<typename Row::params_type, Params>) {
      if (status.ok()) status = Check(row.about, params.*row.member, limits);
    }
  });
  return status;
}

}  // namespace

absl::Status Validate(const SamplingParams& params, int32_t vocab_size, int32_t logprobs_max) {
  return CheckRows(params, {.vocab_size = vocab_size, .logprobs_max = logprobs_max});
}

absl::Status Validate(const StopParams& params, int32_t vocab_size) {
  // Another parameter bounds min_tokens, which its row cannot say. A fault of max_tokens itself
  // comes first.
  if (params.max_tokens >= 1 && (params.min_tokens < 0 || params.min_tokens > params.max_tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat("min_tokens: ", params.min_tokens,
                     ", expected one in [0, max_tokens = ", params.max_tokens, "]"));
  }
  return CheckRows(params, {.vocab_size = vocab_size});
}

absl::string_view FirstUnusedByBeams(const SamplingParams& sampling, const StopParams& stop) {
  absl::string_view name;
  const auto look_at = [&](const auto& row, const auto& params) {
    using Params = std::decay_t<decltype(params)>;
    if (!name.empty() || row.about.beam_search) return;
    if (params.*row.member != Params().*row.member) name = row.about.name;
  };
  ForEachParameter([&](const auto& row) {
    using Row = std::decay_t<decltype(row)>;
    if constexpr (std::is_same_v<typename Row::params_type, SamplingParams>) {
      look_at(row, sampling);
    } else {
      look_at(row, stop);
    }
  });
  return name;
}

std::vector<TokenId> BannedTokens(const SamplingParams& params, const StopParams* stop,
                                  absl::Span<const TokenId> eos_token_ids,
                                  absl::Span<const TokenId> output) {
  std::vector<TokenId> banned;
  FindBannedTokens(params.bad_words, output, banned);
  // Before min_tokens a token that stops must not be generated, as in vLLM and transformers.
  const bool may_not_stop =
      stop != nullptr && static_cast<int64_t>(output.size()) < stop->min_tokens;
  if (may_not_stop && !stop->ignore_eos)
    banned.insert(banned.end(), eos_token_ids.begin(), eos_token_ids.end());
  std::sort(banned.begin(), banned.end());
  banned.erase(std::unique(banned.begin(), banned.end()), banned.end());
  if (!may_not_stop) return banned;
  // A client may list the whole vocabulary here: it is ascending, and not sorted for each token.
  std::vector<TokenId> all;
  std::set_union(banned.begin(), banned.end(), stop->stop_token_ids.begin(),
                 stop->stop_token_ids.end(), std::back_inserter(all));
  return all;
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
