// Fits a sum of a few measured terms to measured times, sample by sample:
//
//   time = coefficient[0] * term[0] + coefficient[1] * term[1] + ...       (no coefficient below 0)
//
// Recursive least squares with forgetting. Three things differ from the textbook, because a node
// feeds it for weeks:
//   - Errors count relative to the time: a step of 5 ms and one of 500 ms weigh the same.
//   - A sample makes the fit forget only what it knew about the terms that the sample has. So an
//     hour of generation does not erase what a prompt's row costs.
//   - No sample is trusted blindly. One with an impossible time or term is rejected. One whose
//     time is far from the prediction is moved towards it (clipped). Both are counted. While
//     predictions stay bad, the fit forgets faster.
//
// Equal samples give equal coefficients on every machine that computes doubles alike. No call
// allocates memory; an observation takes a few tenths of a microsecond, and a tenth of that if it
// was predicted exactly, as the simulator's are.
// Thread safety: none. Owner: StepCost, LinkCost. See docs/adr/0040-one-cost-model.md.
#pragma once

#include <array>
#include <cstdint>

namespace tandem::cost {

class OnlineFit {
 public:
  static constexpr int kTermsMax = 6;
  using Terms = std::array<double, kTermsMax>;

  // `scale`: what each term is in an ordinary sample, > 0; terms are compared in these units.
  // REQUIRES: 1 <= terms <= kTermsMax.
  OnlineFit(int terms, const Terms& scale);

  enum class Verdict { kUsed, kClipped, kRejected };
  // Rejected: a time that is not in [kTimeMin, kTimeMax], or a term that is not in [0, kTermMax].
  // A sample's weight goes with its time to the power of -2: far below kTimeMin that is infinite.
  Verdict Observe(const Terms& terms, double time);
  static constexpr double kTimeMin = 1e-6;
  static constexpr double kTimeMax = 1e9;
  static constexpr double kTermMax = 1e15;

  struct Prediction {
    double value = 0;
    // One standard deviation, in the unit of the times. Grows for terms unlike those observed.
    // Infinite before the first sample.
    double error = 0;
  };
  Prediction Predict(const Terms& terms) const;

  // In time per unit of its term; 0 before the first sample.
  double coefficient(int term) const { return theta_[term] / scale_[term]; }
  // Of recent predictions, each made before its sample was used: (time - predicted) / predicted.
  double relative_error() const;         // root mean square, after clipping
  double median_relative_error() const;  // of the absolute values of the last kRecent

  int64_t samples() const { return samples_; }    // used, clipped ones included
  int64_t clipped() const { return clipped_; }    // of samples()
  int64_t rejected() const { return rejected_; }  // beside samples()
  // Sums over samples(), as predicted beforehand and as measured.
  double predicted_sum() const { return predicted_sum_; }
  double actual_sum() const { return actual_sum_; }

  static constexpr int kRecent = 64;

 private:
  using Matrix = std::array<Terms, kTermsMax>;

  bool Valid(const Terms& terms, double time) const;
  double Dot(const Terms& terms) const;
  Terms Scaled(const Terms& terms) const;
  void Forget(const Terms& terms);
  // Solves (information + damping) * x = right in the terms that are not `fixed`.
  Terms Solve(const Terms& right, const std::array<bool, kTermsMax>& fixed) const;
  void Update(const Terms& terms, double weight, double error);
  void Remember(double relative_error);

  int count_;
  Terms scale_;
  Terms theta_{};         // coefficients, in units of scale_
  Matrix information_{};  // sum of weight * terms * terms', in units of scale_
  double variance_ = 1;   // of relative errors, after clipping
  std::array<float, kRecent> recent_{};
  int64_t samples_ = 0, clipped_ = 0, rejected_ = 0;
  double predicted_sum_ = 0, actual_sum_ = 0;
};

}  // namespace tandem::cost
