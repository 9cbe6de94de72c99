// Goal: whatever whole numbers weights are kept as, a row of a product depends on nothing but
// itself, a fused gate is the product and then the activation, and all classes give the same bits,
// also for infinities and what is no number.
#include "whole_number_gemm.h"

namespace tandem::kernels {
namespace {

constexpr WeightType kTypes[] = {WeightType::kInt8, WeightType::kInt4};

class WholeNumberTypesTest : public WholeNumberGemmTest {};
INSTANTIATE_TEST_SUITE_P(Cpu, WholeNumberTypesTest, kCpuClasses, ClassName);

TEST_P(WholeNumberTypesTest, RowAloneEqualsRowAmongOthers) {
  for (const WeightType type : kTypes) {
    type_ = type;
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
}

TEST_P(WholeNumberTypesTest, FusedGateEqualsProductThenActivation) {
  for (const WeightType type : kTypes) {
    type_ = type;
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
}

TEST_P(WholeNumberTypesTest, ClassesAgreeWhateverIsIn) {
  const Backend* narrow = FindBackend(IsaClass::kAvx2);
  if (narrow == nullptr) GTEST_SKIP() << "needs AVX2";
  for (const WeightType type : kTypes) {
    type_ = type;
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
}

}  // namespace
}  // namespace tandem::kernels
