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
        // Each of k + 2 roundings is at most one unit of the sum of magnitudes.
        double magnitude = 2 + std::abs(expected[static_cast<size_t>(m * shape.n + n)]);
        for (int64_t k = 0; k < shape.k; ++k) {
          magnitude += std::abs(problem.x[static_cast<size_t>(m * x_stride + k)] *
                                weights[static_cast<size_t>(n * shape.k + k)]);
        }
        const size_t i = static_cast<size_t>(m * shape.n + n);
        ASSERT_NEAR(y[i], expected[i], static_cast<double>(shape.k + 3) * kUnit * magnitude)
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
    const MatrixShape shape = {Uniform(100, 700), Uniform(100, 700), WeightType::kF32};
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
