// Goal: int8 products are what their definition says, to the bit, in every class: each row of w,
// and of x each group of 64 in a row, rounded by its own largest magnitude, exact integer sums of
// the groups, one chain of their fp32 products with x's scales, then w's scale, bias and residual;
// so a row depends on nothing but itself. Against exact products of what was rounded, errors stay
// within a bound derived from the two roundings.
#include "whole_number_gemm.h"

namespace tandem::kernels {
namespace {

constexpr int64_t kGroup = 64;

struct Rounded {
  std::vector<int> q;
  float scale = 0;
};

// A row as integers of [-127, 127] and their scale.
Rounded Round(const float* row, int64_t size) {
  Rounded rounded;
  float most = 0;
  for (int64_t i = 0; i < size; ++i) most = std::max(most, std::fabs(row[i]));
  const float factor = most > 1e-30f ? 127.0f / most : 0.0f;
  rounded.scale = most > 1e-30f ? most / 127.0f : 0.0f;
  for (int64_t i = 0; i < size; ++i) {
    rounded.q.push_back(static_cast<int>(std::nearbyint(row[i] * factor)));
  }
  return rounded;
}

class Int8GemmTest : public WholeNumberGemmTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, Int8GemmTest, kCpuClasses, ClassName);

TEST_P(Int8GemmTest, IsItsDefinitionToTheBit) {
  for (int trial = 0; trial < 30; ++trial) {
    const Product p = Draw(Uniform(1, 90), Uniform(1, 150), Uniform(1, 300));
    Threads two(2);
    const Floats y = Run(*backend_, p, Pack(*backend_, p), two.parallel());
    Floats expected(y.size());
    std::vector<Rounded> w;
    for (int64_t n = 0; n < p.n; ++n) w.push_back(Round(p.w.data() + n * p.k, p.k));
    for (int64_t m = 0; m < p.rows; ++m) {
      std::vector<Rounded> x;
      for (int64_t k = 0; k < p.k; k += kGroup) {
        x.push_back(Round(p.x.data() + m * p.x_stride + k, std::min(kGroup, p.k - k)));
      }
      for (int64_t n = 0; n < p.n; ++n) {
        const Rounded& row = w[static_cast<size_t>(n)];
        float total = 0;
        for (size_t g = 0; g < x.size(); ++g) {
          int64_t sum = 0;
          for (size_t k = 0; k < x[g].q.size(); ++k) {
            sum += int64_t{x[g].q[k]} * row.q[g * kGroup + k];
          }
          total = std::fmaf(static_cast<float>(sum), x[g].scale, total);
        }
        const size_t at = static_cast<size_t>(m * p.n + n);
        float value = total * row.scale;
        if (p.with_bias) value += p.bias[static_cast<size_t>(n)];
        if (p.with_residual) value += p.residual[at];
        expected[at] = value;
      }
    }
    ExpectSameBits(y, expected, "trial " + std::to_string(trial));
  }
}

// 127 / max|w| is infinite for the smallest weights.
TEST_P(Int8GemmTest, RowsOfTheSmallestWeightsAreZeros) {
  Product p = Draw(5, 40, 70);
  p.with_bias = p.with_residual = false;
  const float tiny[] = {1e-30f, 1e-38f, 1e-40f, 1.4e-45f};
  for (int64_t n = 0; n < 4; ++n) {
    for (int64_t k = 0; k < p.k; ++k) {
      p.w[static_cast<size_t>(n * p.k + k)] = k % 3 == 0 ? -tiny[n] : tiny[n] / 2;
    }
  }
  const Floats y = Run(*backend_, p, Pack(*backend_, p), {});
  const Floats expected = Run(ref_, p, Pack(ref_, p), {});
  for (int64_t m = 0; m < p.rows; ++m) {
    for (int64_t n = 0; n < 4; ++n) {
      const auto at = static_cast<size_t>(m * p.n + n);
      EXPECT_EQ(y[at], 0) << "weights of " << tiny[n];
      EXPECT_EQ(expected[at], 0) << "weights of " << tiny[n] << " in ref";
    }
  }
}

TEST_P(Int8GemmTest, AgreesWithDouble) {
  for (int trial = 0; trial < 20; ++trial) {
    const Product p = Draw(Uniform(1, 40), Uniform(1, 100), Uniform(1, 600));
    const Floats y = Run(*backend_, p, Pack(*backend_, p), {});
    const Floats expected = Run(ref_, p, Pack(ref_, p), {});
    for (int64_t m = 0; m < p.rows; ++m) {
      const float* x = p.x.data() + m * p.x_stride;
      float most = 0;
      for (int64_t k = 0; k < p.k; ++k) most = std::max(most, std::fabs(x[k]));
      for (int64_t n = 0; n < p.n; ++n) {
        // The reference rounds w alone. Rounding x moves each of its elements by half a step at
        // most, which |w| + half a step of its own carries on; fp32 adds a few units.
        double magnitude = 0, weight_sum = 0, weight_most = 0;
        for (int64_t k = 0; k < p.k; ++k) {
          const double w = std::abs(p.w[static_cast<size_t>(n * p.k + k)]);
          weight_sum += w;
          weight_most = std::max(weight_most, w);
          magnitude += std::abs(x[k]) * w;
        }
        weight_sum += static_cast<double>(p.k) * weight_most / 254;
        const size_t at = static_cast<size_t>(m * p.n + n);
        const double bound = most / 254 * weight_sum * 1.0001 +
                             8 * kUnit * (2 * magnitude + 20 + std::abs(expected[at]));
        ASSERT_NEAR(y[at], expected[at], bound) << "row " << m << " feature " << n;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
