#include "cli/bench_serve/lengths.h"

#include <algorithm>
#include <cmath>
#include <random>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/bench_serve/random_bits.h"

namespace tandem::cli {
namespace {

// Longer than any model's context; a mistyped length should not fill the memory.
constexpr int32_t kLengthMax = 1 << 21;
// After this many draws outside its range a curve returns the nearest length inside.
constexpr int kDrawsMax = 64;

}  // namespace

absl::StatusOr<LengthRange> ParseLengthRange(absl::string_view flag, absl::string_view text) {
  const size_t dots = text.find("..");
  const absl::string_view low = text.substr(0, dots);
  const absl::string_view high = dots == absl::string_view::npos ? low : text.substr(dots + 2);
  LengthRange range;
  if (!absl::SimpleAtoi(low, &range.min) || !absl::SimpleAtoi(high, &range.max) || range.min < 1 ||
      range.max < range.min || range.max > kLengthMax) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, ": '", text,
                                                   "', expected a number from 1 to ", kLengthMax,
                                                   " or a range such as 128..1024"));
  }
  return range;
}

int32_t DrawLength(const LengthRange& range, Random& random) {
  const uint64_t choices = static_cast<uint64_t>(range.max - range.min) + 1;
  return range.min + static_cast<int32_t>(random.Below(choices));
}

int32_t DrawLength(const LengthCurve& curve, Random& random) {
  RandomBits bits(random);
  // A lognormal's mean is exp(mu + sigma^2 / 2).
  std::lognormal_distribution<double> distribution(
      std::log(curve.mean) - curve.sigma * curve.sigma / 2, curve.sigma);
  double length = 0;
  for (int i = 0; i < kDrawsMax; ++i) {
    length = std::round(distribution(bits));
    if (length >= curve.range.min && length <= curve.range.max) break;
  }
  return static_cast<int32_t>(std::clamp<double>(length, curve.range.min, curve.range.max));
}

}  // namespace tandem::cli
