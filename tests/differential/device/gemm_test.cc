// Goal: the device's matrix product is right (against sums in double, within roundings of fp32
// accumulation) and row-invariant: a row's bits do not depend on how many rows there are, on its
// place among them, or on the tile that their number picks.
#include "device_fixture.h"
#include "kernels/cuda/gemm_config.h"

namespace tandem::kernels {
namespace {

struct Shape {
  int32_t rows, n, k;
};

class DeviceGemmTest : public DeviceTest {
 protected:
  struct Options {
    bool bias = false;
    bool add = false;
    int32_t multiprocessors = 1000000;
  };

  std::vector<float> Run(const Shape& shape, const std::vector<Bf16Bits>& x,
                         const std::vector<Bf16Bits>& w, const Options& options) {
    const DeviceBuffer dx = Upload(x), dw = Upload(w);
    const size_t size = static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.n);
    const DeviceBuffer y =
        options.add ? Upload(std::vector<float>(size, 0.5f)) : Poisoned(size * sizeof(float));
    std::vector<float> ramp(static_cast<size_t>(shape.n));
    for (size_t i = 0; i < ramp.size(); ++i) ramp[i] = 0.25f * static_cast<float>(i % 7);
    const DeviceBuffer bias = Upload(ramp);
    DeviceGemmArgs args;
    args.x = dx.as<Bf16Bits>();
    args.w = dw.as<Bf16Bits>();
    args.rows = shape.rows;
    args.n = shape.n;
    args.k = shape.k;
    args.bias = options.bias ? bias.as<float>() : nullptr;
    args.add_to_y = options.add;
    args.y = y.as<float>();
    args.multiprocessors = options.multiprocessors;
    ops().gemm(args, stream());
    return Download<float>(y, size);
  }

  void ExpectRight(const Shape& shape, const Options& options) {
    const std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(shape.rows * shape.k));
    const std::vector<Bf16Bits> w = NormalBf16(static_cast<size_t>(shape.n * shape.k));
    const std::vector<float> y = Run(shape, x, w, options);
    for (int32_t m = 0; m < shape.rows; ++m) {
      for (int32_t n = 0; n < shape.n; ++n) {
        double sum = 0, magnitude = 0;
        for (int32_t k = 0; k < shape.k; ++k) {
          const double product = double{FromBf16(x[static_cast<size_t>(m * shape.k + k)])} *
                                 FromBf16(w[static_cast<size_t>(n * shape.k + k)]);
          sum += product;
          magnitude += std::abs(product);
        }
        if (options.bias) sum += 0.25 * (n % 7);
        if (options.add) sum += 0.5;
        // Tensor cores may truncate where they align addends: two units a sum.
        const double tolerance = 2 * kUnit * (shape.k + 4) * (magnitude + 2);
        ASSERT_NEAR(y[static_cast<size_t>(m * shape.n + n)], sum, tolerance)
            << "row " << m << " column " << n << " of " << shape.rows << "x" << shape.n << "x"
            << shape.k;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceGemmTest, kDeviceKinds, DeviceName);

TEST_P(DeviceGemmTest, AgreesWithSumsInDouble) {
  ExpectRight({1, 1, 8}, {});
  ExpectRight({16, 32, 128}, {.bias = true});
  ExpectRight({17, 70, 72}, {.add = true});
  // Few multiprocessors to fill: the large tile.
  ExpectRight({130, 129, 136}, {.bias = true, .add = true, .multiprocessors = 1});
  for (int i = 0; i < 3; ++i) {
    ExpectRight({Uniform(1, 70), Uniform(1, 150), 8 * Uniform(1, 80)}, {});
  }
}

TEST_P(DeviceGemmTest, ARowDependsOnItselfAlone) {
  const int32_t n = 40, k = 8 * Uniform(10, 60);
  const int32_t rows = 140;
  const std::vector<Bf16Bits> w = NormalBf16(static_cast<size_t>(n * k));
  const std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(rows * k));
  const auto rows_of = [&](int32_t first, int32_t count) {
    return std::vector<Bf16Bits>(x.begin() + first * k, x.begin() + (first + count) * k);
  };
  // The large tile, the medium tile and the small one.
  const std::vector<float> all = Run({rows, n, k}, x, w, {.multiprocessors = 1});
  for (const auto& [first, count] : {std::pair(0, 1), std::pair(139, 1), std::pair(70, 16),
                                     std::pair(3, 33), std::pair(5, 64), std::pair(60, 80)}) {
    const std::vector<float> part = Run({count, n, k}, rows_of(first, count), w, {});
    ExpectSameBits(part.data(), all.data() + first * n, part.size(),
                   std::to_string(count) + " rows from " + std::to_string(first));
  }
}

TEST(GemmTile, IsChosenByShapeAndFitsAnyGpu) {
  EXPECT_EQ(gemm::ChooseTile(1, 4096, 132).m, 16);
  EXPECT_EQ(gemm::ChooseTile(16, 4096, 132).m, 16);
  EXPECT_EQ(gemm::ChooseTile(17, 4096, 132).m, 64);
  EXPECT_EQ(gemm::ChooseTile(2048, 4096, 132).m, 128);
  EXPECT_EQ(gemm::ChooseTile(128, 576, 132).m, 64) << "too few large tiles to fill the GPU";
  for (const gemm::Tile& tile : {gemm::kSmallTile, gemm::kMediumTile, gemm::kLargeTile}) {
    EXPECT_LE(tile.shared_bytes(), size_t{99} << 10);  // the least of compute capability 8.x
    EXPECT_EQ(tile.m % (16 * tile.warps_m), 0);
    EXPECT_EQ(tile.n % (8 * tile.warps_n), 0);
    EXPECT_EQ(tile.k % 64, 0);
    EXPECT_GE(tile.stages, 2);
  }
}

}  // namespace
}  // namespace tandem::kernels
