#include "common/model/rope_frequencies.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace tandem::model {
namespace {

constexpr double kTwoPi = 6.283185307179586476925286766559;

double Llama3Frequency(const RopeScaling& scaling, double frequency) {
  const double original = static_cast<double>(scaling.original_context);
  const double wavelength = kTwoPi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return frequency / scaling.factor;
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * frequency / scaling.factor + smooth * frequency;
}

// The (fractional) pair index whose frequency makes `rotations` turns within the original context.
double YarnCorrectionIndex(const RopeScaling& scaling, double theta, double rotations,
                           double head_dim) {
  const double original = static_cast<double>(scaling.original_context);
  return head_dim * std::log(original / (rotations * kTwoPi)) / (2 * std::log(theta));
}

void ApplyYarn(const LayerConfig& layer, int32_t head_dim, std::vector<double>& frequencies) {
  const RopeScaling& scaling = layer.rope_scaling;
  const double low = std::max(
      0.0, std::floor(YarnCorrectionIndex(scaling, layer.rope_theta, scaling.beta_fast, head_dim)));
  double high = std::min(
      static_cast<double>(head_dim - 1),
      std::ceil(YarnCorrectionIndex(scaling, layer.rope_theta, scaling.beta_slow, head_dim)));
  // Keeps the ramp's slope finite when both ends meet.
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / scaling.factor * ramp + frequencies[i] * (1 - ramp);
  }
}

}  // namespace

std::vector<double> RopeInverseFrequencies(const LayerConfig& layer, int32_t head_dim) {
  TANDEM_CHECK(head_dim > 0 && head_dim % 2 == 0, "head_dim ", head_dim);
  const RopeScaling& scaling = layer.rope_scaling;
  std::vector<double> frequencies(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(layer.rope_theta, -2.0 * static_cast<double>(i) / head_dim);
  }
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      break;
    case RopeScaling::Kind::kLinear:
      for (double& frequency : frequencies) frequency /= scaling.factor;
      break;
    case RopeScaling::Kind::kLlama3:
      for (double& frequency : frequencies) frequency = Llama3Frequency(scaling, frequency);
      break;
    case RopeScaling::Kind::kYarn:
      ApplyYarn(layer, head_dim, frequencies);
      break;
    case RopeScaling::Kind::kFactors:
      TANDEM_CHECK(scaling.frequency_factors.size() == frequencies.size(), "frequency factors");
      for (size_t i = 0; i < frequencies.size(); ++i) {
        frequencies[i] /= scaling.frequency_factors[i];
      }
      break;
  }
  return frequencies;
}

bool SameRope(const LayerConfig& a, const LayerConfig& b) {
  const RopeScaling &x = a.rope_scaling, &y = b.rope_scaling;
  return a.rope_theta == b.rope_theta && x.kind == y.kind && x.factor == y.factor &&
         x.low_freq_factor == y.low_freq_factor && x.high_freq_factor == y.high_freq_factor &&
         x.original_context == y.original_context && x.attention_factor == y.attention_factor &&
         x.beta_fast == y.beta_fast && x.beta_slow == y.beta_slow &&
         x.frequency_factors == y.frequency_factors;
}

}  // namespace tandem::model
