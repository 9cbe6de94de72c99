#include "sim/trace/step_noise.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::sim {
namespace {

// Of the gaps before and after one that its median is of.
constexpr size_t kNeighbours = 4;
// Tokens that came together have no gap between them; a step takes some time.
constexpr double kGapFactorMin = 0.01;
constexpr double kLearnedPercents[] = {0,  1,  5,  10,   25,   50,   75,    90,
                                       95, 98, 99, 99.5, 99.8, 99.9, 99.95, 100};

// Of a distribution that is linear between its quantiles.
double MeanOf(const std::vector<NoiseQuantile>& quantiles) {
  double sum = 0;
  for (size_t i = 1; i < quantiles.size(); ++i)
    sum += (quantiles[i].percent - quantiles[i - 1].percent) / 100 *
           (quantiles[i].factor + quantiles[i - 1].factor) / 2;
  return sum;
}

}  // namespace

absl::StatusOr<StepNoise> StepNoise::Create(std::vector<NoiseQuantile> quantiles) {
  if (quantiles.size() < 2 || quantiles.size() > kQuantilesMax)
    return absl::InvalidArgumentError(absl::StrCat("the step noise has ", quantiles.size(),
                                                   " quantiles, expected 2 to ", kQuantilesMax));
  if (!(quantiles.front().percent == 0 && quantiles.back().percent == 100))
    return absl::InvalidArgumentError(
        absl::StrCat("the step noise's quantiles go from ", quantiles.front().percent, " to ",
                     quantiles.back().percent, " %, expected 0 to 100"));
  double percent = -1, factor = 0;
  for (const NoiseQuantile& q : quantiles) {  // written so that NaN fails
    const bool in_range = q.factor > 0 && q.factor <= kFactorMax;
    if (!(in_range && q.percent > percent && q.factor >= factor))
      return absl::InvalidArgumentError(absl::StrCat(
          "the step noise's quantile of ", q.percent, " % has factor ", q.factor,
          ", expected rising percents and factors that do not fall, above 0 and at most ",
          kFactorMax));
    percent = q.percent;
    factor = q.factor;
  }
  const double mean = MeanOf(quantiles);
  for (NoiseQuantile& q : quantiles) q.factor /= mean;
  return StepNoise(std::move(quantiles));
}

double StepNoise::Factor(Random& random) const {
  if (none()) return 1;
  constexpr double kDraws = 1 << 30;
  const double percent = 100 * static_cast<double>(random.Below(1 << 30)) / kDraws;
  const auto above =
      std::upper_bound(quantiles_.begin(), quantiles_.end(), percent,
                       [](double value, const NoiseQuantile& q) { return value < q.percent; });
  const auto below = std::prev(above);  // percent is below 100 and the first quantile is of 0
  const double part = (percent - below->percent) / (above->percent - below->percent);
  return below->factor + part * (above->factor - below->factor);
}

void GapNoise::Add(absl::Span<const float> gaps_ms) {
  if (gaps_ms.size() < kGapsMin) return;
  std::array<float, 2 * kNeighbours + 1> around{};
  for (size_t i = 1; i < gaps_ms.size(); ++i) {
    const size_t first = std::max<size_t>(1, i - std::min(i, kNeighbours));
    const size_t end = std::min(gaps_ms.size(), i + kNeighbours + 1);
    std::copy(gaps_ms.begin() + first, gaps_ms.begin() + end, around.begin());
    const auto middle = around.begin() + (end - first) / 2;
    std::nth_element(around.begin(), middle, around.begin() + (end - first));
    if (!(*middle > 0)) continue;
    const double factor =
        std::clamp(static_cast<double>(gaps_ms[i]) / *middle, kGapFactorMin, StepNoise::kFactorMax);
    factors_.Add(absl::Milliseconds(factor));
  }
}

std::vector<NoiseQuantile> GapNoise::Quantiles() const {
  std::vector<NoiseQuantile> quantiles;
  if (factors_.count() == 0) return quantiles;
  for (const double percent : kLearnedPercents) {
    const double least = quantiles.empty() ? kGapFactorMin : quantiles.back().factor;
    quantiles.push_back({percent, std::max(least, factors_.PercentileMs(percent))});
  }
  return quantiles;
}

}  // namespace tandem::sim
