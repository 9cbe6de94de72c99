// How unevenly real steps take their time. A cost model predicts the mean of steps of one shape;
// real ones are late now and then, and these decide the high percentiles of the time between
// tokens.
//
//   gaps that a client saw ──GapNoise──▶ quantiles of factors ──StepNoise──▶ factors of steps
//
// Thread safety: none; one thread uses an object.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/runtime/random.h"
#include "sim/trace/latency_histogram.h"

namespace tandem::sim {

// `percent` of all steps take at most `factor` times what is usual.
struct NoiseQuantile {
  double percent = 0;
  double factor = 1;
};

// Random factors for the times of simulated steps. Their mean is 1, so that a cost model's means
// stay as they are.
class StepNoise {
 public:
  static constexpr double kFactorMax = 1000;
  static constexpr size_t kQuantilesMax = 1000;

  // No noise: every factor is 1, and nothing random is drawn.
  StepNoise() = default;
  // The distribution is linear between two quantiles. Only the factors' proportions matter.
  // Errors: kInvalidArgument unless there are 2 to kQuantilesMax quantiles, their percents rise
  // from 0 to 100, and their factors do not fall and lie in (0, kFactorMax].
  static absl::StatusOr<StepNoise> Create(std::vector<NoiseQuantile> quantiles);

  bool none() const { return quantiles_.empty(); }
  double Factor(Random& random) const;

 private:
  explicit StepNoise(std::vector<NoiseQuantile> quantiles) : quantiles_(std::move(quantiles)) {}

  // Bound: kQuantilesMax.
  std::vector<NoiseQuantile> quantiles_;
};

// Learns quantiles from the gaps between the tokens of answers. Each gap is divided by the median
// of the gaps around it in its answer: a step of a larger batch takes longer for a while, a late
// one does so once. An answer's first gap is left out, because its KV travels then.
class GapNoise {
 public:
  // The gaps of one answer, in order, in milliseconds. Answers of fewer than kGapsMin are left out.
  void Add(absl::Span<const float> gaps_ms);
  // For StepNoise::Create; empty if nothing was learned.
  std::vector<NoiseQuantile> Quantiles() const;

  static constexpr size_t kGapsMin = 8;

 private:
  LatencyHistogram factors_;  // a factor of 1 counts as 1 ms
};

}  // namespace tandem::sim
