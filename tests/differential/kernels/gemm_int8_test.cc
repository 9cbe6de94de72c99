// Goal: int8 products are what their definition says, to the bit, in every class: each row of w,
// and of x each group of 64 in a row, rounded by its own largest magnitude, exact integer sums of
// the groups, one chain of their fp32 products with x's scales, then w's scale, bias and residual;
// so a row depends on nothing but itself. Against exact products of what was rounded, errors stay
// within a bound derived from the two roundings.
#include <algorithm>

#include "kernel_fixture.h"

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

struct Product {
  int64_t rows, n, k, x_stride;
  Floats x, w, bias, residual;
  bool with_bias = false, with_residual = false;
};

class Int8GemmTest : public ClassTest {
 protected:
  Product Draw(int64_t rows, int64_t n, int64_t k) {
    const int64_t stride = k + Uniform(0, 5);
    Product p = {rows,
                 n,
                 k,
                 stride,
                 Normal(static_cast<size_t>(rows * stride)),
                 Normal(static_cast<size_t>(n * k), 0.1f),
                 Normal(static_cast<size_t>(n)),
                 Normal(static_cast<size_t>(rows * n))};
    // Rows of every size, one of nothing at all, and outliers.
    for (int64_t row = 0; row < rows; ++row) {
      const float scale = std::ldexp(1.0f, static_cast<int>(Uniform(-20, 20)));
      const bool zero = Uniform(0, 9) == 0;
      for (int64_t i = 0; i < k; ++i) {
        float& value = p.x[static_cast<size_t>(row * stride + i)];
        value = zero ? 0.0f : value * scale * (Uniform(0, 99) == 0 ? 30.0f : 1.0f);
      }
    }
    p.with_bias = Uniform(0, 1) == 0;
    p.with_residual = Uniform(0, 1) == 0;
    return p;
  }

  // The weights in ranges of random length, last range first.
  Floats Pack(const Backend& backend, const Product& p) {
    const MatrixShape shape = {p.n, p.k, WeightType::kInt8};
    Floats packed(backend.packed_bytes(shape) / 4 + 1);
    for (int64_t end = p.n; end > 0;) {
      const int64_t begin = Uniform(0, end - 1);
      backend.pack_rows({shape, begin, end - begin, p.w.data() + begin * p.k, packed.data()});
      end = begin;
    }
    return packed;
  }

  Floats Run(const Backend& backend, const Product& p, const Floats& packed,
             const ParallelFor& parallel) {
    Floats y(static_cast<size_t>(p.rows * p.n));
    if (p.with_residual) std::memcpy(y.data(), p.residual.data(), y.size() * sizeof(float));
    Floats scratch(GemmScratchBytes(p.rows, p.k) / 4);
    GemmArgs args;
    args.x = p.x.data();
    args.x_stride = p.x_stride;
    args.rows = p.rows;
    args.w = {{p.n, p.k, WeightType::kInt8}, packed.data()};
    args.bias = p.with_bias ? p.bias.data() : nullptr;
    args.add_to_y = p.with_residual;
    args.y = y.data();
    args.y_stride = p.n;
    args.scratch = scratch.data();
    backend.gemm(args, parallel);
    return y;
  }

  Floats RunGated(const Backend& backend, const Product& p, const Floats& packed,
                  GateActivation activation, const ParallelFor& parallel) {
    Floats y(static_cast<size_t>(p.rows * p.n / 2));
    Floats scratch(GemmScratchBytes(p.rows, p.k) / 4);
    GemmArgs args;
    args.x = p.x.data();
    args.x_stride = p.x_stride;
    args.rows = p.rows;
    args.w = {{p.n, p.k, WeightType::kInt8}, packed.data()};
    args.gated = y.data();
    args.activation = activation;
    args.y_stride = p.n / 2;
    args.scratch = scratch.data();
    backend.gemm(args, parallel);
    return y;
  }
};
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

TEST_P(Int8GemmTest, RowAloneEqualsRowAmongOthers) {
  Product among = Draw(64, Uniform(60, 130), Uniform(500, 2100));
  const Floats packed = Pack(*backend_, among);
  const Floats all = Run(*backend_, among, packed, {});
  for (int64_t rows = 1; rows <= 64; ++rows) {
    among.rows = rows;
    Threads three(3);
    const Floats y = Run(*backend_, among, packed, three.parallel());
    ExpectSameBits(y.data(), all.data(), y.size(), std::to_string(rows) + " rows");
  }
  for (int64_t row = 0; row < 64; ++row) {
    Product alone = {1,
                     among.n,
                     among.k,
                     among.x_stride,
                     Floats(static_cast<size_t>(among.x_stride)),
                     Floats(0),
                     Floats(static_cast<size_t>(among.n)),
                     Floats(static_cast<size_t>(among.n))};
    alone.with_bias = among.with_bias;
    alone.with_residual = among.with_residual;
    std::memcpy(alone.x.data(), among.x.data() + row * among.x_stride, alone.x.size() * 4);
    std::memcpy(alone.bias.data(), among.bias.data(), alone.bias.size() * 4);
    std::memcpy(alone.residual.data(), among.residual.data() + row * among.n,
                alone.residual.size() * 4);
    ExpectSameBits(Run(*backend_, alone, packed, {}).data(), all.data() + row * among.n,
                   static_cast<size_t>(among.n), "row " + std::to_string(row));
  }
}

TEST_P(Int8GemmTest, FusedGateEqualsProductThenActivation) {
  for (GateActivation activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    for (int64_t rows : {1, 7, 90}) {
      Product p = Draw(rows, 32 * Uniform(1, 12), Uniform(1, 600));
      p.with_bias = p.with_residual = false;
      const Floats packed = Pack(*backend_, p);
      const Floats product = Run(*backend_, p, packed, {});
      Threads three(3);
      const Floats fused = RunGated(*backend_, p, packed, activation, three.parallel());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < p.n / 2; ++i) {
          const float* gate = product.data() + row * p.n + i / 16 * 32 + i % 16;
          float y = 0;
          backend_->gated_activation({activation, gate, 1, gate + 16, 1, 1, 1, &y, 1}, {});
          ExpectSameBits(&fused.data()[row * p.n / 2 + i], &y, 1, "row " + std::to_string(row));
        }
      }
    }
  }
}

TEST_P(Int8GemmTest, ClassesAgreeWhateverIsIn) {
  const Backend* narrow = FindBackend(IsaClass::kAvx2);
  if (narrow == nullptr) GTEST_SKIP() << "needs AVX2";
  for (int trial = 0; trial < 40; ++trial) {
    Product p = Draw(Uniform(1, 60), Uniform(1, 120), Uniform(1, 200));
    const float kOdd[] = {INFINITY, -INFINITY, NAN, 1e-38f, -3e38f};
    for (int64_t i = Uniform(0, 5); i > 0; --i) {
      p.x[static_cast<size_t>(Uniform(0, static_cast<int64_t>(p.x.size()) - 1))] =
          kOdd[Uniform(0, 4)];
      p.w[static_cast<size_t>(Uniform(0, static_cast<int64_t>(p.w.size()) - 1))] =
          kOdd[Uniform(0, 4)];
    }
    const Floats mine = Run(*backend_, p, Pack(*backend_, p), {});
    const Floats other = Run(*narrow, p, Pack(*narrow, p), {});
    for (size_t i = 0; i < mine.size(); ++i) {
      // Which NaN a sum of two is may depend on the operands' order.
      if (std::isnan(mine[i]) && std::isnan(other[i])) continue;
      ExpectSameBits(&mine.data()[i], &other.data()[i], 1, "element " + std::to_string(i));
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
