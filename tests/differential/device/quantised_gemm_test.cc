// Goal: products of int8, int4 and fp8 weights are what their definitions say. int8: the bits of
// the CPU's int8 products. int4 and fp8: the bits of the bf16 product with the same weights. All,
// and fp8 by fp8 where the device has it (fp8_gemm_test.cc): near sums in double, a row's bits its
// own across row counts, tiles and places, and the gate in the epilogue equal to the operator on
// rows.
#include <algorithm>
#include <utility>

#include "kernels/api/backend.h"
#include "kernels/api/device_gated.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_ops.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/ops/gemm_config.h"
#include "quantised_gemm_fixture.h"

namespace tandem::kernels {
namespace {

INSTANTIATE_TEST_SUITE_P(All, QuantisedGemmTest, kDeviceKindsWithHopper, DeviceName);

TEST_P(QuantisedGemmTest, AgreesWithSumsInDouble) {
  for (DeviceWeightType type : QuantisedTypes()) {
    ExpectRight(type, {1, 1, 8}, {});
    ExpectRight(type, {16, 32, 256}, {.bias = true});
    ExpectRight(type, {17, 70, 72}, {.add = true});
    ExpectRight(type, {130, 129, 136}, {.bias = true, .add = true, .multiprocessors = 1});
    ExpectRight(type, {Uniform(1, 70), Uniform(1, 150), 8 * Uniform(1, 80)}, {});
  }
}

TEST_P(QuantisedGemmTest, ARowDependsOnItselfAlone) {
  const int32_t n = 40, k = 8 * Uniform(10, 60), rows = 140;
  const auto x = NormalBf16(static_cast<size_t>(rows * k));
  for (DeviceWeightType type : QuantisedTypes()) {
    const Matrix w = Draw(type, n, k);
    // The large tile, the medium tile and the small one.
    const std::vector<float> all = Run(rows, x, w, {.multiprocessors = 1});
    for (const auto& [first, count] : {std::pair(0, 1), std::pair(139, 1), std::pair(70, 16),
                                       std::pair(3, 33), std::pair(60, 80)}) {
      const std::vector<Bf16Bits> some(x.begin() + first * k, x.begin() + (first + count) * k);
      const std::vector<float> part = Run(count, some, w, {});
      ExpectSameBits(part.data(), all.data() + first * n, part.size(),
                     std::string(DeviceWeightTypeName(type)) + ", " + std::to_string(count) +
                         " rows from " + std::to_string(first));
    }
  }
}

TEST_P(QuantisedGemmTest, Int8HasTheBitsOfTheCpus) {
  const Backend& cpu = BestPortableBackend();
  if (cpu.isa == IsaClass::kRef) GTEST_SKIP() << "this processor has only the reference";
  for (const int32_t rows : {1, 19, 66}) {
    const Shape shape = {rows, Uniform(1, 90), 8 * Uniform(1, 60)};
    const Matrix w = Draw(DeviceWeightType::kInt8, shape.n, shape.k);
    const auto x = NormalBf16(static_cast<size_t>(shape.rows * shape.k));
    const std::vector<float> y = Run(shape.rows, x, w, {.bias = true, .add = true});

    const MatrixShape matrix = {shape.n, shape.k, WeightType::kInt8};
    const auto aligned = [](size_t bytes) {
      return std::unique_ptr<char, decltype(&std::free)>(
          static_cast<char*>(std::aligned_alloc(64, (bytes + 63) / 64 * 64)), &std::free);
    };
    const auto packed = aligned(cpu.packed_bytes(matrix));
    cpu.pack_rows({matrix, 0, shape.n, w.drawn.data(), packed.get(), nullptr});
    const auto scratch = aligned(GemmScratchBytes(shape.rows, shape.k));
    std::vector<float> floats, bias, expected = Residuals(shape.rows, shape.n);
    for (Bf16Bits value : x) floats.push_back(FromBf16(value));
    for (int32_t n = 0; n < shape.n; ++n) bias.push_back(BiasOf(n));
    GemmArgs args;
    args.x = floats.data();
    args.x_stride = shape.k;
    args.rows = shape.rows;
    args.w = {matrix, packed.get()};
    args.bias = bias.data();
    args.add_to_y = true;
    args.y = expected.data();
    args.y_stride = shape.n;
    args.scratch = scratch.get();
    cpu.gemm(args, ParallelFor());
    ExpectSameBits(y.data(), expected.data(), y.size(), std::to_string(rows) + " rows");
  }
}

TEST_P(QuantisedGemmTest, Int4AndFp8HaveTheBitsOfBf16) {
  if (std::string(ops().numerics).find("mma16816") == std::string::npos) {
    GTEST_SKIP() << "bf16 products of " << ops().numerics << " have an order of their own";
  }
  for (DeviceWeightType type : {DeviceWeightType::kInt4, DeviceWeightType::kFp8}) {
    for (const int32_t rows : {5, 40}) {
      const Shape shape = {rows, Uniform(1, 70), 8 * Uniform(1, 60)};
      const Matrix w = Draw(type, shape.n, shape.k);
      const auto x = NormalBf16(static_cast<size_t>(shape.rows * shape.k));
      const std::vector<float> y = Run(shape.rows, x, w, {});
      // The same weights in bf16, without the scales of rows.
      Matrix plain = {DeviceWeightType::kBf16, shape.n, shape.k, {}, {}, {}, {}};
      std::vector<float> row_scales(static_cast<size_t>(shape.n), 1.0f);
      if (type == DeviceWeightType::kFp8) {
        std::memcpy(row_scales.data(), w.scales.data(), w.scales.size());
      }
      for (size_t i = 0; i < w.seen.size(); ++i) {
        const float scale = row_scales[i / static_cast<size_t>(shape.k)];
        const Bf16Bits bits = RoundToBf16(scale == 0.0f ? 0.0f : w.seen[i] / scale);
        plain.values.push_back(static_cast<char>(bits & 0xff));
        plain.values.push_back(static_cast<char>(bits >> 8));
      }
      std::vector<float> expected = Run(shape.rows, x, plain, {});
      for (size_t i = 0; i < expected.size(); ++i) {
        expected[i] *= row_scales[i % static_cast<size_t>(shape.n)];
      }
      ExpectSameBits(y.data(), expected.data(), y.size(), DeviceWeightTypeName(type));
    }
  }
}

TEST_P(QuantisedGemmTest, TheGateInTheEpilogueIsTheOperatorsToTheBit) {
  std::vector<DeviceWeightType> types = QuantisedTypes();
  types.push_back(DeviceWeightType::kBf16);
  for (DeviceWeightType type : types) {
    for (GateActivation activation : {GateActivation::kSilu, GateActivation::kGeluTanh}) {
      // One size for each tile.
      for (const auto& [rows, multiprocessors] :
           {std::pair(7, 99999), std::pair(20, 99999), std::pair(70, 1)}) {
        const int32_t size = 8 * Uniform(1, 12), k = 8 * Uniform(1, 20);
        const Matrix w = Draw(type, 2 * size, k);
        const auto x = NormalBf16(static_cast<size_t>(rows * k), 0.2f);
        const std::vector<float> sums = Run(rows, x, w, {.multiprocessors = multiprocessors});
        std::vector<float> gate_up(sums.size());
        for (int32_t i = 0; i < rows * size; ++i) {
          const int32_t row = i / size, column = i % size;
          gate_up[static_cast<size_t>(row * 2 * size + column)] = sums[static_cast<size_t>(2 * i)];
          gate_up[static_cast<size_t>((row * 2 + 1) * size + column)] =
              sums[static_cast<size_t>(2 * i + 1)];
        }
        const size_t count = static_cast<size_t>(rows * size);
        const DeviceBuffer in = Upload(gate_up), out = Poisoned(count * 2);
        ops().gated({activation, in.as<float>(), rows, size, out.as<Bf16Bits>()}, stream());
        std::vector<float> expected;
        for (Bf16Bits value : Download<Bf16Bits>(out, count)) expected.push_back(FromBf16(value));
        const std::vector<float> actual =
            Run(rows, x, w,
                {.gated = true, .activation = activation, .multiprocessors = multiprocessors});
        ExpectSameBits(actual.data(), expected.data(), count, DeviceWeightTypeName(type));
      }
    }
  }
}

// What a search for the fastest tile may choose from.
TEST_P(QuantisedGemmTest, EveryTileThatACallNamesGivesTheSameBits) {
  std::vector<DeviceWeightType> types = QuantisedTypes();
  types.push_back(DeviceWeightType::kBf16);
  for (DeviceWeightType type : types) {
    const int32_t rows = Uniform(1, 90), n = 16 * Uniform(9, 16), k = 8 * Uniform(1, 40);
    const Matrix w = Draw(type, n, k);
    const auto x = NormalBf16(static_cast<size_t>(rows * k), 0.2f);
    const std::vector<float> sums = Run(rows, x, w, {.bias = true, .add = true});
    const std::vector<float> gated = Run(rows, x, w, {.gated = true});
    int32_t tile = 0;
    for (; ops().gemm_tile(type, tile).shared_bytes > 0; ++tile) {
      const std::string name = std::string(DeviceWeightTypeName(type)) + " in tile " +
                               std::to_string(tile) + ", " + std::to_string(rows) + " rows";
      const auto same = Run(rows, x, w, {.bias = true, .add = true, .tile = tile});
      ExpectSameBits(same.data(), sums.data(), sums.size(), name);
      // One block walks all tiles, so that each gathers where the one before did.
      const auto gate = Run(rows, x, w, {.gated = true, .multiprocessors = 1, .tile = tile});
      ExpectSameBits(gate.data(), gated.data(), gated.size(), name + ", gated");
    }
    EXPECT_GE(tile, gemm::kNumSizes);
    EXPECT_EQ(ops().gemm_tile(type, -1).shared_bytes, 0u);
  }
}

TEST_P(QuantisedGemmTest, ActivationsAreRoundedToTheNearestStepOfTheirGroup) {
  const int32_t rows = Uniform(1, 9), k = 8 * Uniform(1, 300);
  std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(rows * k));
  // A group of nothing, and one with a value far above the rest.
  for (int32_t i = 0; i < std::min(k, 64); ++i) x[static_cast<size_t>(i)] = 0;
  x.back() = RoundToBf16(1000.0f);
  const Rounded rounded = Quantise(x, rows, k, DeviceWeightType::kInt8);
  const size_t columns = static_cast<size_t>(PaddedColumns(k));
  const auto values = Download<int8_t>(rounded.values, columns * static_cast<size_t>(rows));
  const auto scales = Download<float>(rounded.scales, rounded.scales.bytes() / 4);
  for (int32_t row = 0; row < rows; ++row) {
    for (int32_t first = 0; first < PaddedColumns(k); first += kInt8GroupSize) {
      const auto at = [&](int32_t i) {
        return i < k ? FromBf16(x[static_cast<size_t>(row * k + i)]) : 0.0f;
      };
      float most = 0;
      for (int32_t i = first; i < first + kInt8GroupSize; ++i)
        most = std::max(most, std::abs(at(i)));
      const float scale =
          scales[static_cast<size_t>(first / kInt8GroupSize * ScaleStride(rows) + row)];
      ASSERT_EQ(scale, most / 127.0f) << "row " << row << " group " << first;
      const float factor = most > 0 ? 127.0f / most : 0.0f;
      for (int32_t i = first; i < first + kInt8GroupSize; ++i) {
        ASSERT_EQ(values[static_cast<size_t>(row) * columns + static_cast<size_t>(i)],
                  std::nearbyint(at(i) * factor))
            << "row " << row << " column " << i;
      }
    }
  }
}

// What packing may lose, of each weight.
TEST_P(QuantisedGemmTest, PackedWeightsAreNearTheDrawn) {
  const int32_t n = 20, k = 8 * Uniform(1, 60);
  for (DeviceWeightType type : QuantisedTypes()) {
    const Matrix w = Draw(type, n, k);
    for (int32_t i = 0; i < n * k; ++i) {
      const float* row = w.drawn.data() + i / k * k;
      float most = 0, least = 0, largest = 0;
      const int32_t group = i % k / 32 * 32, end = std::min(k, group + 32);
      for (int32_t j = 0; j < k; ++j) most = std::max(most, std::abs(row[j]));
      for (int32_t j = group; j < end; ++j) {
        least = j == group ? row[j] : std::min(least, row[j]);
        largest = j == group ? row[j] : std::max(largest, row[j]);
      }
      const float drawn = w.drawn[static_cast<size_t>(i)];
      // Half a step; of fp8, half of an eighth of the number's power of two, or of the subnormals'.
      // int4's scale and offset lose 2⁻¹¹ each as fp16, and the value 2⁻⁸ as bf16.
      double bound = most / 254.0;
      if (type == DeviceWeightType::kFp8 || type == DeviceWeightType::kFp8Rows) {
        bound = std::max(std::abs(drawn) / 16.0, most / 448.0 * 0x1p-10);
      } else if (type == DeviceWeightType::kInt4) {
        bound = (largest - least) / 30.0 + 0x1p-7 * std::max(std::abs(least), std::abs(largest)) +
                0x1p-20;
      }
      ASSERT_NEAR(w.seen[static_cast<size_t>(i)], drawn, bound * 1.001)
          << DeviceWeightTypeName(type) << " element " << i;
    }
  }
}

TEST(E4m3, RoundsToTheNearestOfItsNumbers) {
  std::vector<float> numbers;
  for (int code = 0; code < 0x7f; ++code) {
    const float value = E4m3ToFloat(static_cast<uint8_t>(code));
    EXPECT_EQ(FloatToE4m3(value), code);
    EXPECT_EQ(FloatToE4m3(-value), code | 0x80);
    numbers.push_back(value);
  }
  EXPECT_EQ(numbers.back(), 448.0f);
  EXPECT_EQ(numbers[1], 0x1p-9f);
  for (size_t i = 0; i + 1 < numbers.size(); ++i) {
    ASSERT_LT(numbers[i], numbers[i + 1]);
    const float middle = (numbers[i] + numbers[i + 1]) / 2;  // exact in fp32
    EXPECT_EQ(FloatToE4m3(middle), i % 2 == 0 ? i : i + 1) << "ties go to the even code";
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 0.0f)), i);
    EXPECT_EQ(FloatToE4m3(std::nextafter(middle, 1e9f)), i + 1);
  }
  EXPECT_EQ(FloatToE4m3(1e30f), 0x7e);
  EXPECT_EQ(FloatToE4m3(-INFINITY), 0xfe);
}

TEST(QuantisedTiles, FitAnyGpu) {
  for (const gemm::Tiles& tiles : {gemm::kInt8Tiles, gemm::kInt4Tiles, gemm::kFp8Tiles}) {
    for (const gemm::Tile& tile : {tiles.small, tiles.medium, tiles.large}) {
      EXPECT_LE(tile.shared_bytes(), size_t{99} << 10);  // the least of compute capability 8.x
      EXPECT_EQ(tile.m % (16 * tile.warps_m), 0);
      EXPECT_EQ(tile.n % (8 * tile.warps_n), 0);
      EXPECT_EQ(tile.k % kInt8GroupSize, 0);
      EXPECT_EQ(tile.type == DeviceWeightType::kInt4 ? tile.k % 128 : 0, 0) << "chunks of scales";
      EXPECT_GE(tile.stages, 2);
    }
  }
}

}  // namespace
}  // namespace tandem::kernels
