// Goal: each kind of rope scaling turns frequencies as its paper or release defines.
#include "common/model/rope_frequencies.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace tandem::model {
namespace {

constexpr double kTwoPi = 6.283185307179586;

LayerConfig Layer(RopeScaling::Kind kind, double theta) {
  LayerConfig layer;
  layer.rope_theta = theta;
  layer.rope_scaling.kind = kind;
  layer.rope_scaling.factor = 8.0;
  layer.rope_scaling.original_context = 8192;
  return layer;
}

TEST(RopeFrequenciesTest, PlainAndLinear) {
  const std::vector<double> plain =
      RopeInverseFrequencies(Layer(RopeScaling::Kind::kNone, 10000.0), 4);
  ASSERT_EQ(plain.size(), 2u);
  EXPECT_DOUBLE_EQ(plain[0], 1.0);
  EXPECT_DOUBLE_EQ(plain[1], 0.01);
  const std::vector<double> linear =
      RopeInverseFrequencies(Layer(RopeScaling::Kind::kLinear, 10000.0), 4);
  EXPECT_DOUBLE_EQ(linear[1], 0.01 / 8);
}

// High frequencies stay, low ones are divided, and in between is a monotonic passage.
TEST(RopeFrequenciesTest, Llama3KeepsShortWavelengths) {
  LayerConfig layer = Layer(RopeScaling::Kind::kLlama3, 500000.0);
  const std::vector<double> scaled = RopeInverseFrequencies(layer, 128);
  layer.rope_scaling.kind = RopeScaling::Kind::kNone;
  const std::vector<double> plain = RopeInverseFrequencies(layer, 128);
  int kept = 0, divided = 0, between = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = kTwoPi / plain[i];
    const double ratio = plain[i] / scaled[i];
    if (wavelength < 8192.0 / 4) {
      EXPECT_DOUBLE_EQ(ratio, 1.0);
      ++kept;
    } else if (wavelength > 8192.0) {
      EXPECT_DOUBLE_EQ(ratio, 8.0);
      ++divided;
    } else {
      EXPECT_GT(ratio, 1.0);
      EXPECT_LT(ratio, 8.0);
      ++between;
    }
  }
  EXPECT_GT(kept, 20);
  EXPECT_GT(divided, 20);
  EXPECT_GT(between, 3);
}

TEST(RopeFrequenciesTest, YarnInterpolatesByRotations) {
  LayerConfig layer = Layer(RopeScaling::Kind::kYarn, 10000.0);
  const std::vector<double> scaled = RopeInverseFrequencies(layer, 128);
  layer.rope_scaling.kind = RopeScaling::Kind::kNone;
  const std::vector<double> plain = RopeInverseFrequencies(layer, 128);
  for (size_t i = 0; i < plain.size(); ++i) {
    const double rotations = 8192.0 * plain[i] / kTwoPi;
    const double ratio = plain[i] / scaled[i];
    // One pair of slack on either side: the ramp's ends are rounded to whole pairs.
    if (rotations > 32.0 * 1.2) {
      EXPECT_DOUBLE_EQ(ratio, 1.0) << i;
    }
    if (rotations < 1.0 / 1.2) {
      EXPECT_DOUBLE_EQ(ratio, 8.0) << i;
    }
  }
}

TEST(RopeFrequenciesTest, ExplicitFactorsDivide) {
  LayerConfig layer = Layer(RopeScaling::Kind::kFactors, 10000.0);
  layer.rope_scaling.frequency_factors = {1.0f, 4.0f};
  EXPECT_DOUBLE_EQ(RopeInverseFrequencies(layer, 4)[1], 0.0025);
}

}  // namespace
}  // namespace tandem::model
