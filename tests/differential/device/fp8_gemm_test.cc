// Goal: products of e4m3 by e4m3 on devices that have them. Rounding activations gives the bits of
// its definition, whatever they are; sums that need no more bits than a tensor core keeps have the
// bits of the definition's chain, with each group's and each row's own scale; a NaN stays in its
// row; devices without such products say so. What they share with other types of weights
// (tolerances, invariance, epilogues, tiles) is in quantised_gemm_test.cc.
#include <limits>

#include "kernels/api/device_gemm.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/ops/gemm_wgmma_config.h"
#include "quantised_gemm_fixture.h"

namespace tandem::kernels {
namespace {

constexpr DeviceWeightType kType = DeviceWeightType::kFp8Rows;

class Fp8GemmTest : public QuantisedGemmTest {
 protected:
  void SetUp() override {
    QuantisedGemmTest::SetUp();
    if (device_ != nullptr && !HasProducts(ops(), kType)) {
      GTEST_SKIP() << device_->properties().name << " does not multiply fp8";
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, Fp8GemmTest,
                         ::testing::Values(DeviceKind::kEmulatedHopper, DeviceKind::kCuda),
                         DeviceName);

// The kernel that rounds is there on every device.
using Fp8RoundingTest = QuantisedGemmTest;
INSTANTIATE_TEST_SUITE_P(All, Fp8RoundingTest, kDeviceKinds, DeviceName);

TEST_P(Fp8RoundingTest, HasTheBitsOfItsDefinition) {
  const int32_t rows = Uniform(4, 9), k = 8 * Uniform(17, 300);
  std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(rows * k));
  // Sizes of every kind, so that some groups round to subnormals, one row of nothing, one of next
  // to nothing, and what is not finite.
  for (Bf16Bits& value : x) {
    value = RoundToBf16(std::ldexp(FromBf16(value), -Uniform(0, 24)));
  }
  const auto at = [&](int32_t row, int32_t i) -> Bf16Bits& {
    return x[static_cast<size_t>(row * k + i)];
  };
  for (int32_t i = 0; i < k; ++i) {
    at(0, i) = i % 2 == 0 ? 0 : 0x8000;
    at(1, i) = RoundToBf16(std::ldexp(FromBf16(at(1, i)), -110));
  }
  for (const Bf16Bits odd : {0x7f80, 0xff80, 0x7fc0, 0xffff, 0x7f7f, 0x0001}) {
    at(Uniform(2, rows - 1), Uniform(0, k - 1)) = odd;
  }
  const Rounded rounded = Quantise(x, rows, k, kType);
  const size_t columns = static_cast<size_t>(PaddedColumns(k));
  const auto codes = Download<uint8_t>(rounded.values, columns * static_cast<size_t>(rows));
  const auto scales = Download<float>(rounded.scales, rounded.scales.bytes() / 4);
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t first = 0; first < PaddedColumns(k); first += kFp8GroupSize) {
      float values[kFp8GroupSize], most = 0;
      for (int32_t i = 0; i < kFp8GroupSize; ++i) {
        values[i] = first + i < k ? FromBf16(at(row, first + i)) : 0.0f;
        if (std::isfinite(values[i])) most = std::max(most, std::abs(values[i]));
      }
      const float factor = most > 1e-30f ? 448.0f / most : 0.0f;
      ASSERT_EQ(scales[static_cast<size_t>(first / kFp8GroupSize * ScaleStride(rows) + row)],
                most > 1e-30f ? most / 448.0f : 0.0f)
          << "row " << row << " group from " << first;
      for (int32_t i = 0; i < kFp8GroupSize; ++i) {
        const int expected = std::isfinite(values[i]) ? FloatToE4m3(values[i] * factor) : 0x7f;
        ASSERT_EQ(int{codes[static_cast<size_t>(row) * columns + static_cast<size_t>(first + i)]},
                  expected)
            << "row " << row << " column " << first + i << ", " << values[i] << " times " << factor;
      }
    }
  }
}

// Small integers: no sum of a group needs more than ten bits, so the tensor core's are exact, and a
// result can be told to the bit. Scales are any numbers, so that another group's, row's or order's
// show.
TEST_P(Fp8GemmTest, ExactSumsHaveTheBitsOfTheChain) {
  for (const int32_t rows : {1, 13, Uniform(17, 140)}) {
    const int32_t n = Uniform(1, 150), k = 8 * Uniform(1, 90);
    const size_t columns = static_cast<size_t>(PaddedColumns(k));
    const size_t stride = static_cast<size_t>(ScaleStride(rows)), groups = columns / kFp8GroupSize;
    const auto integers = [&](int32_t count) {
      std::vector<uint8_t> codes(static_cast<size_t>(count) * columns);
      for (size_t i = 0; i < codes.size(); ++i) {
        const bool inside = i % columns < static_cast<size_t>(k);
        codes[i] = FloatToE4m3(inside ? static_cast<float>(Uniform(-2, 2)) : 0.0f);
      }
      return codes;
    };
    const std::vector<uint8_t> x = integers(rows), w = integers(n);
    const std::vector<float> x_scales = Normal(groups * stride);
    const std::vector<float> w_scales = Normal(static_cast<size_t>(n));
    const DeviceBuffer dx = Upload(x), dw = Upload(w), dxs = Upload(x_scales),
                       dws = Upload(w_scales);
    const size_t size = static_cast<size_t>(rows) * static_cast<size_t>(n);
    const DeviceBuffer y = Poisoned(size * sizeof(float));
    DeviceGemmArgs args;
    args.type = kType;
    args.packed = dw.data();
    args.scales = dws.data();
    args.x_rounded = dx.data();
    args.x_scales = dxs.as<float>();
    args.rows = rows;
    args.n = n;
    args.k = k;
    args.y = y.as<float>();
    args.multiprocessors = Uniform(1, 4);
    ops().gemm(args, stream());
    std::vector<float> expected;
    for (size_t m = 0; m < static_cast<size_t>(rows); ++m) {
      for (size_t column = 0; column < static_cast<size_t>(n); ++column) {
        float chain = 0;
        for (size_t g = 0; g < groups; ++g) {
          float sum = 0;
          for (size_t i = g * kFp8GroupSize; i < (g + 1) * kFp8GroupSize; ++i) {
            sum += E4m3ToFloat(x[m * columns + i]) * E4m3ToFloat(w[column * columns + i]);
          }
          chain = std::fma(sum, x_scales[g * stride + m], chain);
        }
        expected.push_back(chain * w_scales[column]);
      }
    }
    ExpectSameBits(Download<float>(y, size).data(), expected.data(), size,
                   std::to_string(rows) + "x" + std::to_string(n) + "x" + std::to_string(k));
  }
}

TEST_P(Fp8GemmTest, ANanStaysInItsRow) {
  const int32_t rows = Uniform(2, 40), n = 2 * Uniform(1, 40), k = 8 * Uniform(1, 50);
  const Matrix w = Draw(kType, n, k);
  std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(rows * k));
  const std::vector<float> whole = Run(rows, x, w, {});
  const int32_t row = Uniform(0, rows - 1);
  x[static_cast<size_t>(row * k + Uniform(0, k - 1))] = Uniform(0, 1) == 0 ? 0x7f80 : 0x7fc0;
  const std::vector<float> damaged = Run(rows, x, w, {});
  for (int32_t m = 0; m < rows; ++m) {
    const float* of = damaged.data() + m * n;
    if (m != row) {
      ExpectSameBits(of, whole.data() + m * n, static_cast<size_t>(n), std::to_string(m));
      continue;
    }
    for (int32_t i = 0; i < n; ++i) EXPECT_TRUE(std::isnan(of[i])) << of[i];
  }
}

// Every tile, with blocks that walk several tiles of y and go round the ring of stages.
TEST_P(Fp8GemmTest, ARowHasTheSameBitsInEveryTile) {
  const int32_t n = 130, k = 8 * Uniform(120, 160), rows = 150;
  const Matrix w = Draw(kType, n, k);
  const auto x = NormalBf16(static_cast<size_t>(rows * k));
  const std::vector<Bf16Bits> last(x.end() - k, x.end());
  const std::vector<float> alone = Run(1, last, w, {.multiprocessors = 1});
  int32_t tile = 0;
  for (; ops().gemm_tile(kType, tile).shared_bytes > 0; ++tile) {
    const auto y = Run(rows, x, w, {.multiprocessors = Uniform(1, 3), .tile = tile});
    ExpectSameBits(y.data() + (rows - 1) * n, alone.data(), alone.size(),
                   "tile " + std::to_string(tile));
  }
  EXPECT_EQ(tile, gemm::kNumWgmmaFp8Tiles);
}

TEST(Fp8Weights, AreTheSameNumbersInRowsAndInFragments) {
  std::mt19937_64 generator(std::random_device{}());
  std::normal_distribution<float> normal;
  const int32_t k = 8 * 37;
  std::vector<float> row, seen[2] = {std::vector<float>(k), std::vector<float>(k)};
  for (int32_t i = 0; i < k; ++i) row.push_back(normal(generator));
  int which = 0;
  for (DeviceWeightType type : {DeviceWeightType::kFp8, kType}) {
    const DeviceRowBytes bytes = RowBytesOf(type, k);
    std::vector<char> values(bytes.values, '\x7f');
    float scale = std::numeric_limits<float>::quiet_NaN();
    DevicePackArgs args;
    args.type = type;
    args.k = k;
    args.row = row.data();
    args.values = values.data();
    args.scales = &scale;
    PackDeviceRow(args);
    UnpackDeviceRow(args, seen[which++].data());
    if (type != kType) continue;
    // In the order of columns, zeros beyond them.
    for (int32_t i = 0; i < PaddedColumns(k); ++i) {
      const uint8_t code = static_cast<uint8_t>(values[static_cast<size_t>(i)]);
      EXPECT_EQ(code, i < k ? FloatToE4m3(row[static_cast<size_t>(i)] * (1 / scale)) : 0) << i;
    }
  }
  EXPECT_EQ(seen[0], seen[1]);
}

TEST(Fp8Products, AreThereOnHopperAlone) {
  const auto hopper = emulated::NewEmulatedDevice(1, emulated::EmulatedChip::kHopper);
  const auto ampere = emulated::NewEmulatedDevice(1, emulated::EmulatedChip::kAmpere);
  EXPECT_TRUE(HasProducts(hopper->ops(), kType));
  EXPECT_FALSE(HasProducts(ampere->ops(), kType));
  for (DeviceWeightType type : {DeviceWeightType::kBf16, DeviceWeightType::kInt8,
                                DeviceWeightType::kInt4, DeviceWeightType::kFp8}) {
    EXPECT_TRUE(HasProducts(hopper->ops(), type) && HasProducts(ampere->ops(), type));
  }
}

TEST(WgmmaFp8Tile, IsChosenByShapeAndFitsHopper) {
  const auto rows_for = [](int32_t rows) {
    return gemm::kWgmmaFp8Tiles[gemm::ChooseWgmmaTile(gemm::kWgmmaFp8Tiles, rows, 4096, 132)].rows;
  };
  EXPECT_EQ(rows_for(1), 8);
  EXPECT_EQ(rows_for(9), 16);
  EXPECT_EQ(rows_for(64), 64);
  EXPECT_EQ(rows_for(2048), 128);
  for (const gemm::WgmmaTile& tile : gemm::kWgmmaFp8Tiles) {
    EXPECT_EQ(tile.type, kType);
    EXPECT_LE(tile.shared_bytes(), size_t{227} << 10);
    EXPECT_EQ(tile.k, 2 * kFp8GroupSize);
    EXPECT_EQ(tile.n % 64, 0);
    EXPECT_LE(tile.consumers(), 2);
    EXPECT_LE(tile.rows, 256);
    EXPECT_GE(tile.stages, 3);
    // Panels and runs of scales lie on the multiples that bulk copies and products want.
    EXPECT_EQ(tile.rows * 128 % 1024, 0);
    EXPECT_EQ(tile.scales_offset() % 1024, 0);
    EXPECT_EQ(tile.run_stride() % 128, 0);
    EXPECT_EQ(tile.barriers_offset() % 8, 0);
    // Three sets of sums, and what they leave for everything else.
    const int registers = tile.consumers() > 1 ? tile.consumer_registers() : 255;
    EXPECT_GE(registers - 3 * tile.rows / 2, 40);
  }
}

}  // namespace
}  // namespace tandem::kernels
