#include "common/cost/online_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "common/base/check.h"

namespace tandem::cost {
namespace {

// How many samples the fit remembers: while predictions are good, and while they are bad.
constexpr double kMemory = 256, kMemoryWhileBad = 8;
// Predictions are bad when the relative error's root mean square is above this.
constexpr double kBad = 0.35;
// A time is clipped when it is more than this many standard deviations off, but never when it is
// within kTolerance of the prediction.
constexpr double kDeviationsMax = 4, kTolerance = 0.5;
// Until there are this many samples a time may be off by this factor.
constexpr int64_t kFirstSamples = 16;
constexpr double kFirstTolerance = 63;
// Of the mean information of a term. Damping keeps the solution finite when terms always occur in
// the same proportion, so that the samples cannot tell them apart.
constexpr double kDamping = 1e-4;
// A clock tells no more of a step: a sample with a smaller relative error has nothing to teach, and
// what is known is not forgotten for it.
constexpr double kErrorMin = 1e-6;
// Weight of the newest error in variance_.
constexpr double kErrorGain = 1.0 / 16;
constexpr float kErrorShownMax = 1000;

}  // namespace

OnlineFit::OnlineFit(int terms, const Terms& scale) : count_(terms), scale_(scale) {
  TANDEM_CHECK(terms >= 1 && terms <= kTermsMax, "terms ", terms);
  for (int i = 0; i < count_; ++i) TANDEM_CHECK(scale[i] > 0, "term ", i, " scale ", scale[i]);
}

// Written so that NaN fails every comparison.
bool OnlineFit::Valid(const Terms& terms, double time) const {
  if (!(time >= kTimeMin && time <= kTimeMax)) return false;
  double sum = 0;
  for (int i = 0; i < count_; ++i) {
    if (!(terms[i] >= 0 && terms[i] <= kTermMax)) return false;
    sum += terms[i];
  }
  return sum > 0;
}

OnlineFit::Terms OnlineFit::Scaled(const Terms& terms) const {
  Terms scaled{};
  for (int i = 0; i < count_; ++i) scaled[i] = terms[i] / scale_[i];
  return scaled;
}

double OnlineFit::Dot(const Terms& terms) const {
  double sum = 0;
  for (int i = 0; i < count_; ++i) sum += theta_[i] * terms[i];
  return sum;
}

OnlineFit::Verdict OnlineFit::Observe(const Terms& terms, double time) {
  if (!Valid(terms, time)) {
    ++rejected_;
    return Verdict::kRejected;
  }
  const Terms scaled = Scaled(terms);
  const double predicted = Dot(scaled);
  double clipped = time;
  if (predicted > 0) {
    const double tolerance = samples_ < kFirstSamples
                                 ? kFirstTolerance
                                 : std::max(kTolerance, kDeviationsMax * std::sqrt(variance_));
    clipped = std::clamp(time, predicted / (1 + tolerance), predicted * (1 + tolerance));
    clipped = std::max(clipped, kTimeMin);
    Remember(std::abs(time - predicted) / predicted);
    const double relative = (clipped - predicted) / predicted;
    variance_ += kErrorGain * (std::min(relative * relative, 1.0) - variance_);
  }
  if (const double error = clipped - predicted; std::abs(error) > kErrorMin * clipped) {
    Forget(scaled);
    Update(scaled, 1 / (clipped * clipped), error);
  }
  ++samples_;
  predicted_sum_ += predicted;
  actual_sum_ += time;
  if (clipped == time) return Verdict::kUsed;
  ++clipped_;
  return Verdict::kClipped;
}

void OnlineFit::Remember(double relative_error) {
  recent_[samples_ % kRecent] =
      static_cast<float>(std::min<double>(relative_error, kErrorShownMax));
}

// Scales the rows and columns of the terms that the sample has.
void OnlineFit::Forget(const Terms& terms) {
  const double memory = variance_ > kBad * kBad ? kMemoryWhileBad : kMemory;
  const double factor = std::sqrt(1 - 1 / memory);
  Terms factors{};
  for (int i = 0; i < kTermsMax; ++i) factors[i] = terms[i] > 0 ? factor : 1;
  for (int i = 0; i < kTermsMax; ++i)
    for (int j = 0; j < kTermsMax; ++j) information_[i][j] *= factors[i] * factors[j];
}

// The unconstrained solution first; then without the coefficients that it made negative, which
// become 0, until none is.
void OnlineFit::Update(const Terms& terms, double weight, double error) {
  Terms target{};
  for (int i = 0; i < kTermsMax; ++i) {  // terms beyond count_ are 0
    for (int j = 0; j < kTermsMax; ++j) information_[i][j] += weight * terms[i] * terms[j];
    target[i] = weight * terms[i] * error;
  }
  std::array<bool, kTermsMax> fixed{};
  for (int round = 0; round <= count_; ++round) {
    Terms right = target;
    for (int j = 0; j < count_; ++j) {
      if (!fixed[j]) continue;
      for (int i = 0; i < count_; ++i) right[i] += information_[i][j] * theta_[j];
    }
    const Terms step = Solve(right, fixed);
    bool negative = false;
    for (int i = 0; i < count_; ++i) {
      if (fixed[i] || theta_[i] + step[i] >= 0) continue;
      fixed[i] = negative = true;
    }
    if (negative) continue;
    for (int i = 0; i < count_; ++i) theta_[i] = fixed[i] ? 0 : theta_[i] + step[i];
    return;
  }
}

// By Cholesky's decomposition: information_ is positive semidefinite, and damping makes it
// definite.
OnlineFit::Terms OnlineFit::Solve(const Terms& right,
                                  const std::array<bool, kTermsMax>& fixed) const {
  double trace = 0;
  for (int i = 0; i < count_; ++i) trace += information_[i][i];
  const double damping = kDamping * trace / count_;
  Matrix lower{};
  Terms inverse{};  // of the diagonal: a division takes as long as ten products
  Terms solution{};
  for (int i = 0; i < count_; ++i) {
    if (fixed[i]) continue;
    double rest = right[i];
    for (int j = 0; j < i; ++j) {
      double sum = information_[i][j];
      for (int k = 0; k < j; ++k) sum -= lower[i][k] * lower[j][k];
      lower[i][j] = sum * inverse[j];  // 0 for a fixed j
      rest -= lower[i][j] * solution[j];
    }
    double pivot = information_[i][i] + damping;
    for (int k = 0; k < i; ++k) pivot -= lower[i][k] * lower[i][k];
    // Rounding may leave a pivot below the damping, never what it stands for.
    inverse[i] = 1 / std::sqrt(std::max(pivot, damping));
    solution[i] = rest * inverse[i];
  }
  for (int i = count_ - 1; i >= 0; --i) {
    for (int k = i + 1; k < count_; ++k) solution[i] -= lower[k][i] * solution[k];
    solution[i] *= inverse[i];  // 0 for a fixed i
  }
  return solution;
}

OnlineFit::Prediction OnlineFit::Predict(const Terms& terms) const {
  if (samples_ == 0) return {0, std::numeric_limits<double>::infinity()};
  const Terms scaled = Scaled(terms);
  const double value = Dot(scaled);
  const Terms spread = Solve(scaled, {});
  double uncertainty = 0;  // of the coefficients, for these terms, beside one sample's own
  for (int i = 0; i < count_; ++i) uncertainty += scaled[i] * spread[i];
  return {value, relative_error() * std::sqrt(value * value + std::max(uncertainty, 0.0))};
}

double OnlineFit::relative_error() const { return std::sqrt(variance_); }

double OnlineFit::median_relative_error() const {
  // The first sample has no prediction before it; its place holds a 0.
  const auto count = static_cast<int>(std::min<int64_t>(samples_, kRecent));
  if (count == 0) return 0;
  std::array<float, kRecent> sorted = recent_;
  std::nth_element(sorted.begin(), sorted.begin() + count / 2, sorted.begin() + count);
  return sorted[count / 2];
}

}  // namespace tandem::cost
