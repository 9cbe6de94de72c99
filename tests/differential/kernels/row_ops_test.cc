// Goal: RMSNorm, RoPE, gated activations, add and scale equal the double-precision reference within
// bounds of a few roundings, leave what lies outside their rows alone, and give the same bits with
// any number of threads, for a row among others, and in both classes.
#include <functional>

#include "kernel_fixture.h"

namespace tandem::kernels {
namespace {

class RowOpsTest : public ClassTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, RowOpsTest, kCpuClasses, ClassName);

// An operator on its inputs, returning its output: run with any backend and threads.
using Operator = std::function<Floats(const Backend&, const ParallelFor&)>;

void ExpectClose(const Floats& actual, const Floats& expected, double relative, double absolute) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    if (std::isnan(expected[i])) {
      ASSERT_TRUE(std::isnan(actual[i])) << "padding written at " << i;
      continue;
    }
    ASSERT_NEAR(actual[i], expected[i], relative * std::abs(expected[i]) + absolute) << "at " << i;
  }
}

void ExpectThreadsAgree(const Backend& backend, const Operator& op) {
  const Floats expected = op(backend, {});
  for (int count : {2, 3}) {
    Threads threads(count);
    ExpectSameBits(op(backend, threads.parallel()), expected, std::to_string(count) + " threads");
  }
  const Backend* other = FindBackend(IsaClass::kAvx2);
  if (other != nullptr) ExpectSameBits(op(*other, {}), expected, "avx2 against this class");
}

TEST_P(RowOpsTest, RmsNorm) {
  for (int trial = 0; trial < 30; ++trial) {
    const int64_t rows = Uniform(1, 40), groups = trial % 3 == 0 ? Uniform(2, 9) : 1;
    const int64_t size = trial % 2 == 0 ? Uniform(1, 40) : Uniform(500, 2100);
    const int64_t stride = groups * size + 3;
    const Floats x = Normal(static_cast<size_t>(rows * stride), 3.0f);
    const Floats weight = Normal(static_cast<size_t>(size));
    const Floats residual = Normal(static_cast<size_t>(rows * stride));
    const bool adds = trial % 5 == 0;
    const Operator op = [&](const Backend& backend, const ParallelFor& parallel) {
      Floats y(static_cast<size_t>(rows * stride));
      if (adds) std::memcpy(y.data(), residual.data(), y.size() * sizeof(float));
      RmsNormArgs args;
      args.x = x.data();
      args.x_stride = args.y_stride = stride;
      args.rows = rows;
      args.groups = groups;
      args.size = size;
      args.weight = weight.data();
      args.eps = 1e-5f;
      (adds ? args.residual : args.y) = y.data();
      backend.rms_norm(args, parallel);
      return y;
    };
    // The sum of squares is positive: its relative error is at most one unit for each addition.
    const double units = static_cast<double>(size) / 16 + 12;
    ExpectClose(op(*backend_, {}), op(ref_, {}), units * kUnit, adds ? 64 * units * kUnit : 1e-30);
    ExpectThreadsAgree(*backend_, op);
  }
}

TEST_P(RowOpsTest, RmsNormRowAloneEqualsRowAmongOthers) {
  const int64_t size = 576;
  const Floats x = Normal(size * 64), weight = Normal(size);
  Floats all(size * 64), alone(size);
  RmsNormArgs args;
  args.x = x.data();
  args.x_stride = args.y_stride = args.size = size;
  args.rows = 64;
  args.weight = weight.data();
  args.y = all.data();
  backend_->rms_norm(args, {});
  for (int64_t row = 0; row < 64; ++row) {
    args.x = x.data() + row * size;
    args.rows = 1;
    args.y = alone.data();
    backend_->rms_norm(args, {});
    ExpectSameBits(all.data() + row * size, alone.data(), size, "row " + std::to_string(row));
  }
}

TEST_P(RowOpsTest, RmsNormRoundsWhereAskedTo) {
  if (!backend_->dot_products) GTEST_SKIP() << "no dot products";
  const int64_t rows = 9, size = 333, stride = size + 5;
  const Floats x = Normal(static_cast<size_t>(rows * stride));
  const Floats weight = Normal(static_cast<size_t>(size));
  Floats y(static_cast<size_t>(rows * stride));
  std::vector<uint16_t> rounded(static_cast<size_t>(rows * stride), 0xabcd);
  RmsNormArgs args;
  args.x = x.data();
  args.x_stride = args.y_stride = stride;
  args.rows = rows;
  args.size = size;
  args.weight = weight.data();
  args.y = y.data();
  backend_->rms_norm(args, {});
  args.y = nullptr;
  args.y_bf16 = rounded.data();
  backend_->rms_norm(args, {});
  for (int64_t i = 0; i < rows * stride; ++i) {
    const float as_float = RoundedToBf16(y[static_cast<size_t>(i)]);
    uint32_t bits = 0;
    std::memcpy(&bits, &as_float, sizeof(bits));
    const bool padding = i % stride >= size;
    ASSERT_EQ(rounded[static_cast<size_t>(i)], padding ? 0xabcdu : bits >> 16) << "at " << i;
  }
}

TEST_P(RowOpsTest, Rope) {
  for (int64_t head_dim : {2, 32, 64, 80, 128, 256}) {
    const int64_t rows = Uniform(1, 50), heads = Uniform(1, 9), positions = 97;
    const int64_t stride = heads * head_dim + 5;
    const Floats x = Normal(static_cast<size_t>(rows * stride));
    Floats cos(static_cast<size_t>(positions * head_dim / 2)), sin(cos.size());
    for (size_t i = 0; i < cos.size(); ++i) {
      cos[i] = static_cast<float>(std::cos(static_cast<double>(i)));
      sin[i] = static_cast<float>(std::sin(static_cast<double>(i)));
    }
    std::vector<int32_t> at(static_cast<size_t>(rows));
    for (int32_t& position : at) position = static_cast<int32_t>(Uniform(0, positions - 1));
    const Operator op = [&](const Backend& backend, const ParallelFor& parallel) {
      Floats y(x.size());
      std::memcpy(y.data(), x.data(), x.size() * sizeof(float));
      backend.rope({y.data(), stride, rows, static_cast<int32_t>(heads),
                    static_cast<int32_t>(head_dim), at.data(), cos.data(), sin.data()},
                   parallel);
      return y;
    };
    // Two products and a difference of numbers below 6.
    ExpectClose(op(*backend_, {}), op(ref_, {}), 4 * kUnit, 24 * kUnit);
    ExpectThreadsAgree(*backend_, op);
  }
}

TEST_P(RowOpsTest, GatedActivations) {
  for (GateActivation activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    const int64_t rows = Uniform(1, 30), size = Uniform(1, 2100), stride = size + 7;
    const Floats gate = Normal(static_cast<size_t>(rows * stride), 6.0f);
    const Floats up = Normal(static_cast<size_t>(rows * stride));
    const Operator op = [&](const Backend& backend, const ParallelFor& parallel) {
      Floats y(static_cast<size_t>(rows * stride));
      backend.gated_activation(
          {activation, gate.data(), stride, up.data(), stride, rows, size, y.data(), stride},
          parallel);
      return y;
    };
    // exp's argument reaches 90, where half a unit of it is 2^-18 of the result; far from 0 the
    // result itself vanishes, which the absolute part covers (the reference's 1 + tanh cancels).
    ExpectClose(op(*backend_, {}), op(ref_, {}), 128 * kUnit, 1e-7);
    ExpectThreadsAgree(*backend_, op);
  }
}

TEST_P(RowOpsTest, ExtremeGatesStayFinite) {
  const float gates[] = {-1e30f, -1e4f, -100.0f, -0.0f, 0.0f, 100.0f, 1e4f, 1e12f};
  for (GateActivation activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
    for (float gate : gates) {
      const float up = 1.0f;
      float y = NAN;
      backend_->gated_activation({activation, &gate, 1, &up, 1, 1, 1, &y, 1}, {});
      EXPECT_NEAR(y, gate > 0 ? gate : 0.0f, 1e-7 * std::abs(gate > 0 ? gate : 1.0f)) << gate;
    }
  }
}

TEST_P(RowOpsTest, AddAndScale) {
  for (int64_t size : {1, 15, 16, 17, 5000, 40000}) {
    const Floats x = Normal(static_cast<size_t>(size)), start = Normal(static_cast<size_t>(size));
    const Operator op = [&](const Backend& backend, const ParallelFor& parallel) {
      Floats y(static_cast<size_t>(size) + 1);
      std::memcpy(y.data(), start.data(), start.size() * sizeof(float));
      backend.add(x.data(), y.data(), size, parallel);
      backend.scale(y.data(), 0.3f, size, parallel);
      return y;
    };
    ExpectSameBits(op(*backend_, {}), op(ref_, {}), "one rounding each");
    ExpectThreadsAgree(*backend_, op);
  }
}

}  // namespace
}  // namespace tandem::kernels
