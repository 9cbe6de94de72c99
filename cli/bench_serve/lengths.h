// How long the prompts and answers of a synthetic load are, in tokens.
// Thread safety: plain values; DrawLength by the thread that owns `random`.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/runtime/random.h"

namespace tandem::cli {

// Uniform in [min, max].
struct LengthRange {
  int32_t min = 1;
  int32_t max = 1;
};

// Token ids that every model has.
inline constexpr LengthRange kAnyModelsTokenIds = {33, 126};

// "512" or "128..1024". kInvalidArgument names `flag`.
absl::StatusOr<LengthRange> ParseLengthRange(absl::string_view flag, absl::string_view text);

// A lognormal distribution; values outside the range are drawn again.
struct LengthCurve {
  double mean = 1;   // before the range cuts
  double sigma = 1;  // of the logarithm
  LengthRange range;
};

// Not the ShareGPT conversations themselves: curves with the mean lengths that the PagedAttention
// paper (Kwon et al., 2023, figure 11) gives for them, 161 and 338 tokens, and tails of our choice.
inline constexpr LengthCurve kShareGptPrompts = {.mean = 161, .sigma = 1.2, .range = {4, 4096}};
inline constexpr LengthCurve kShareGptAnswers = {.mean = 338, .sigma = 0.9, .range = {4, 2048}};

int32_t DrawLength(const LengthRange& range, Random& random);
int32_t DrawLength(const LengthCurve& curve, Random& random);

}  // namespace tandem::cli
