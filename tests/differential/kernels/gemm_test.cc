// Goal: y = x·wᵀ equals the double-precision reference within a bound derived from norms, and a
// row's bits depend on that row alone: not on the other rows, its index, threads, strides or the
// class.
#include "kernel_fixture.h"

namespace tandem::kernels {
namespace {

struct Weights {
  MatrixShape shape;
  Floats rows{0};
  Floats packed{0};

  PackedMatrix view() const { return {shape, packed.data()}; }
};

// Packs `rows` in ranges of random length, last range first.
Weights Pack(const Backend& backend, const MatrixShape& shape, const Floats& rows,
             std::mt19937_64* generator) {
  Weights w = {shape, Floats(0), Floats(backend.packed_bytes(shape) / 4 + 1)};
  int64_t end = shape.n;
  while (end > 0) {
    const int64_t begin = std::uniform_int_distribution<int64_t>(0, end - 1)(*generator);
    backend.pack_rows({shape, begin, end - begin, rows.data() + begin * shape.k, w.packed.data()});
    end = begin;
  }
  return w;
}

struct Problem {
  int64_t rows;
  Floats x;
  int64_t x_stride;
  const float* bias = nullptr;
  const Floats* residual = nullptr;
};

Floats Multiply(const Backend& backend, const Weights& w, const Problem& problem,
                const ParallelFor& parallel) {
  Floats y(static_cast<size_t>(problem.rows * w.shape.n));
  if (problem.residual != nullptr) {
    std::memcpy(y.data(), problem.residual->data(), y.size() * sizeof(float));
  }
  Floats scratch(GemmScratchBytes(problem.rows, w.shape.k) / 4);
  GemmArgs args;
  args.x = problem.x.data();
  args.x_stride = problem.x_stride;
  args.rows = problem.rows;
  args.w = w.view();
  args.bias = problem.bias;
  args.add_to_y = problem.residual != nullptr;
  args.y = y.data();
  args.y_stride = w.shape.n;
  args.scratch = scratch.data();
  backend.gemm(args, parallel);
  return y;
}

class GemmTest : public ClassTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, GemmTest, kCpuClasses, ClassName);

TEST_P(GemmTest, AgreesWithDouble) {
  for (int trial = 0; trial < 40; ++trial) {
    const MatrixShape shape = {Uniform(1, 200), Uniform(1, 300),
                               trial % 2 == 0 ? WeightType::kF32 : WeightType::kBf16};
    const int64_t rows = Uniform(1, 70), x_stride = shape.k + Uniform(0, 5);
    Floats weights = Normal(static_cast<size_t>(shape.n * shape.k));
    Floats bias = Normal(static_cast<size_t>(shape.n));
    Floats residual = Normal(static_cast<size_t>(rows * shape.n));
    Problem problem = {rows, Normal(static_cast<size_t>(rows * x_stride)), x_stride};
    if (trial % 3 != 0) problem.bias = bias.data();
    if (trial % 5 < 2) problem.residual = &residual;
    const Weights mine = Pack(*backend_, shape, weights, &generator_);
    const Weights reference = Pack(ref_, shape, weights, &generator_);
    const Floats y = Multiply(*backend_, mine, problem, {});
    const Floats expected = Multiply(ref_, reference, problem, {});
    for (int64_t m = 0; m < rows; ++m) {
      for (int64_t n = 0; n < shape.n; ++n) {
        // Each of k + 2 roundings is at most one unit of the sum of magnitudes; where x is rounded
        // to bf16, so is each product.
        double magnitude = 2 + std::abs(expected[static_cast<size_t>(m * shape.n + n)]);
        for (int64_t k = 0; k < shape.k; ++k) {
          magnitude += std::abs(problem.x[static_cast<size_t>(m * x_stride + k)] *
                                weights[static_cast<size_t>(n * shape.k + k)]);
        }
        const size_t i = static_cast<size_t>(m * shape.n + n);
        const bool rounds_x = backend_->dot_products && shape.type == WeightType::kBf16;
        const double units =
            static_cast<double>(shape.k + 3) * kUnit + (rounds_x ? 1.01 * kBf16Unit : 0);
        ASSERT_NEAR(y[i], expected[i], units * magnitude)
            << "rows " << rows << " n " << shape.n << " k " << shape.k << " at " << m << "," << n;
      }
    }
  }
}

TEST_P(GemmTest, RowAloneEqualsRowAmongOthers) {
  for (WeightType type : {WeightType::kF32, WeightType::kBf16}) {
    const MatrixShape shape = {Uniform(60, 130), Uniform(500, 1600), type};
    const Weights w =
        Pack(*backend_, shape, Normal(static_cast<size_t>(shape.n * shape.k)), &generator_);
    Problem alone = {1, Normal(static_cast<size_t>(shape.k)), shape.k};
    const Floats expected = Multiply(*backend_, w, alone, {});
    for (int64_t rows = 1; rows <= 64; ++rows) {
      Problem among = {rows, Normal(static_cast<size_t>(rows * shape.k)), shape.k};
      const int64_t index = Uniform(0, rows - 1);
      std::memcpy(among.x.data() + index * shape.k, alone.x.data(), sizeof(float) * shape.k);
      const Floats y = Multiply(*backend_, w, among, {});
      ExpectSameBits(y.data() + index * shape.n, expected.data(), expected.size(),
                     "row " + std::to_string(index) + " of " + std::to_string(rows));
    }
  }
}

TEST_P(GemmTest, ThreadsDoNotChangeBits) {
  for (int64_t rows : {1, 3, 65, 300}) {
    const MatrixShape shape = {Uniform(100, 700), Uniform(100, 700),
                               Uniform(0, 1) == 0 ? WeightType::kF32 : WeightType::kBf16};
    const Weights w =
        Pack(*backend_, shape, Normal(static_cast<size_t>(shape.n * shape.k)), &generator_);
    Problem problem = {rows, Normal(static_cast<size_t>(rows * shape.k)), shape.k};
    const Floats expected = Multiply(*backend_, w, problem, {});
    for (int count : {2, 3}) {
      Threads threads(count);
      ExpectSameBits(Multiply(*backend_, w, problem, threads.parallel()), expected,
                     std::to_string(count) + " threads");
    }
  }
}

// bf16 x and w as the dot product classes take them, and the fused gate.
class DotGemmTest : public ClassTest {
 protected:
  void SetUp() override {
    ClassTest::SetUp();
    if (backend_ != nullptr && !backend_->dot_products) GTEST_SKIP() << "no dot products";
  }

  // `rows` rows of `k` bf16, kRowGap apart beyond k.
  std::vector<uint16_t> RandomRows(int64_t rows, int64_t k) {
    const Floats values = Normal(static_cast<size_t>(rows * (k + kRowGap)));
    std::vector<uint16_t> bits;
    for (size_t i = 0; i < values.size(); ++i) bits.push_back(ToBits(values[i]));
    return bits;
  }
  static uint16_t ToBits(float x) {
    uint32_t bits = 0;
    std::memcpy(&bits, &x, sizeof(bits));
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
  }
  static float FromBits(uint16_t x) {
    const uint32_t bits = static_cast<uint32_t>(x) << 16;
    float out = 0;
    std::memcpy(&out, &bits, sizeof(out));
    return out;
  }
  std::vector<uint16_t> RunGated(const Weights& w, const std::vector<uint16_t>& x, int64_t rows,
                                 GateActivation activation, const ParallelFor& parallel) {
    std::vector<uint16_t> y(static_cast<size_t>(rows * w.shape.n / 2), 0xffff);
    GemmArgs args;
    args.x_bf16 = x.data();
    args.x_stride = w.shape.k + kRowGap;
    args.rows = rows;
    args.w = w.view();
    args.gated_bf16 = y.data();
    args.activation = activation;
    args.y_stride = w.shape.n / 2;
    backend_->gemm(args, parallel);
    return y;
  }

  static constexpr int64_t kRowGap = 6;
};
INSTANTIATE_TEST_SUITE_P(Cpu, DotGemmTest, kCpuClasses, ClassName);

TEST_P(DotGemmTest, RoundedInputGivesTheBitsOfFp32Input) {
  for (int64_t rows : {1, 5, 13, 77, 200}) {
    const MatrixShape shape = {Uniform(1, 200), 2 * Uniform(1, 400), WeightType::kBf16};
    const Weights w =
        Pack(*backend_, shape, Normal(static_cast<size_t>(shape.n * shape.k)), &generator_);
    const std::vector<uint16_t> x = RandomRows(rows, shape.k);
    Problem wide = {rows, Floats(x.size()), shape.k + kRowGap};
    for (size_t i = 0; i < x.size(); ++i) wide.x[i] = FromBits(x[i]);
    const Floats expected = Multiply(*backend_, w, wide, {});
    Floats y(expected.size());
    GemmArgs args;
    args.x_bf16 = x.data();
    args.x_stride = shape.k + kRowGap;
    args.rows = rows;
    args.w = w.view();
    args.y = y.data();
    args.y_stride = shape.n;
    Threads two(2);
    backend_->gemm(args, two.parallel());
    ExpectSameBits(y, expected, std::to_string(rows) + " rows");
  }
}

TEST_P(DotGemmTest, FusedGateEqualsProductThenActivation) {
  for (GateActivation activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    for (int64_t rows : {1, 7, 90}) {
      const int64_t half = 16 * Uniform(1, 12);
      const MatrixShape shape = {2 * half, 2 * Uniform(1, 300), WeightType::kBf16};
      const Weights w =
          Pack(*backend_, shape, Normal(static_cast<size_t>(shape.n * shape.k), 0.1f), &generator_);
      const std::vector<uint16_t> x = RandomRows(rows, shape.k);
      Problem wide = {rows, Floats(x.size()), shape.k + kRowGap};
      for (size_t i = 0; i < x.size(); ++i) wide.x[i] = FromBits(x[i]);
      const Floats product = Multiply(*backend_, w, wide, {});
      Threads three(3);
      const auto fused = RunGated(w, x, rows, activation, three.parallel());
      EXPECT_EQ(fused, RunGated(w, x, rows, activation, {})) << "threads change bits";
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < half; ++i) {
          const float* gate = product.data() + row * shape.n + i / 16 * 32 + i % 16;
          float y = 0;
          backend_->gated_activation({activation, gate, 1, gate + 16, 1, 1, 1, &y, 1}, {});
          ASSERT_EQ(fused[static_cast<size_t>(row * half + i)], ToBits(y))
              << "row " << row << " at " << i;
        }
      }
    }
  }
}

TEST_F(KernelTest, GemmClassesAgreeToTheBit) {
  const Backend* narrow = FindBackend(IsaClass::kAvx2);
  const Backend* wide = FindBackend(IsaClass::kAvx512);
  if (narrow == nullptr || wide == nullptr) GTEST_SKIP() << "needs AVX2 and AVX-512";
  EXPECT_STREQ(narrow->numerics, wide->numerics);
  for (int trial = 0; trial < 20; ++trial) {
    const MatrixShape shape = {Uniform(1, 300), Uniform(1, 500),
                               trial % 2 == 0 ? WeightType::kF32 : WeightType::kBf16};
    const int64_t rows = Uniform(1, 90);
    Floats weights = Normal(static_cast<size_t>(shape.n * shape.k));
    Problem problem = {rows, Normal(static_cast<size_t>(rows * shape.k)), shape.k};
    ExpectSameBits(Multiply(*wide, Pack(*wide, shape, weights, &generator_), problem, {}),
                   Multiply(*narrow, Pack(*narrow, shape, weights, &generator_), problem, {}),
                   "avx512 against avx2");
  }
}

}  // namespace
}  // namespace tandem::kernels
