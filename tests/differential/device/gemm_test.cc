// Goal: the device's matrix product is right (against sums in double, within roundings of fp32
// accumulation) and row-invariant: a row's bits do not depend on how many rows there are, on its
// place among them, or on the tile that their number picks.
#include <set>

#include "device_fixture.h"
#include "kernels/api/bf16.h"
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/ops/gemm_config.h"
#include "kernels/cuda/ops/gemm_wgmma_config.h"

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
    int32_t tile = -1;
    std::vector<float> before = {};  // what y holds; empty: Residuals, or poison
  };

  std::vector<float> Run(const Shape& shape, const std::vector<Bf16Bits>& x,
                         const std::vector<Bf16Bits>& w, const Options& options) {
    const DeviceBuffer dx = Upload(x), dw = Upload(w);
    const size_t size = static_cast<size_t>(shape.rows) * static_cast<size_t>(shape.n);
    const DeviceBuffer y = !options.before.empty() ? Upload(options.before)
                           : options.add           ? Upload(Residuals(shape.rows, shape.n))
                                                   : Poisoned(size * sizeof(float));
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
    args.tile = options.tile;
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
        if (options.add) sum += ResidualAt(m, n);
        // Tensor cores may truncate where they align addends: two units a sum.
        const double tolerance = 2 * kUnit * (shape.k + 4) * (magnitude + 2);
        ASSERT_NEAR(y[static_cast<size_t>(m * shape.n + n)], sum, tolerance)
            << "row " << m << " column " << n << " of " << shape.rows << "x" << shape.n << "x"
            << shape.k;
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(All, DeviceGemmTest, kDeviceKindsWithHopper, DeviceName);

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

using HopperGemmTest = DeviceGemmTest;
INSTANTIATE_TEST_SUITE_P(All, HopperGemmTest,
                         ::testing::Values(DeviceKind::kEmulatedHopper, DeviceKind::kCuda),
                         DeviceName);

// Each tile of Hopper's kernel by a number of rows, columns and multiprocessors that pick it; a
// block walks several tiles where there is one multiprocessor, going round the stages.
TEST_P(HopperGemmTest, ARowHasTheSameBitsInEveryTile) {
  const int32_t n = 130, k = 8 * Uniform(66, 130), rows = 260;
  const int32_t few = 120;  // an odd number of wide tiles: clusters of two would have one too many
  const std::vector<Bf16Bits> w = NormalBf16(static_cast<size_t>(n * k));
  const std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(rows * k));
  struct Choice {
    int32_t rows, multiprocessors, columns = n;
  };
  const std::vector<float> alone = Run({1, n, k}, x, w, {.multiprocessors = 1});
  std::set<int> tiles;
  for (const Choice& choice :
       {Choice{8, 1}, Choice{13, 2}, Choice{31, 1}, Choice{64, 1000}, Choice{100, 4},
        Choice{100, 1}, Choice{rows, 2}, Choice{100, 1, few}, Choice{rows, 1, few}}) {
    tiles.insert(gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, choice.rows, choice.columns,
                                       choice.multiprocessors));
    // The row that was alone comes last.
    std::vector<Bf16Bits> part(x.begin() + k, x.begin() + choice.rows * k);
    part.insert(part.end(), x.begin(), x.begin() + k);
    const std::vector<float> y =
        Run({choice.rows, choice.columns, k}, part, w, {.multiprocessors = choice.multiprocessors});
    ExpectSameBits(y.data() + (choice.rows - 1) * choice.columns, alone.data(),
                   static_cast<size_t>(choice.columns),
                   "last of " + std::to_string(choice.rows) + " rows");
  }
  EXPECT_EQ(tiles.size(), size_t{gemm::kNumWgmmaTiles}) << "a tile is not tested";
}

// What a search for the fastest tile may choose from: each for any number of rows.
TEST_P(HopperGemmTest, EveryTileThatACallNamesGivesTheSameBits) {
  const int32_t rows = Uniform(1, 150), n = Uniform(1, 140), k = 8 * Uniform(1, 70);
  const std::vector<Bf16Bits> w = NormalBf16(static_cast<size_t>(n * k));
  const std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(rows * k));
  const std::vector<float> y = Run({rows, n, k}, x, w, {.multiprocessors = 3});
  int32_t tile = 0;
  for (; ops().gemm_tile(DeviceWeightType::kBf16, tile).shared_bytes > 0; ++tile) {
    const auto same = Run({rows, n, k}, x, w, {.multiprocessors = 3, .tile = tile});
    ExpectSameBits(same.data(), y.data(), y.size(),
                   std::to_string(rows) + " rows in tile " + std::to_string(tile));
  }
  EXPECT_GE(tile, gemm::kNumSizes);
  if (GetParam() == DeviceKind::kEmulatedHopper) {
    EXPECT_EQ(tile, gemm::kNumWgmmaTiles);
  }
}

// Hopper's memory adds the sums to y. It rounds as a processor does, except that it takes zeros for
// subnormals: the emulated memory must say the same as the GPU's. The portable kernels keep them.
TEST_P(DeviceGemmTest, OnlyHoppersMemoryTakesZerosForSubnormals) {
  const float smallest = 1.17549435e-38f;  // that is not subnormal
  const std::vector<float> before = {
      0.75f * smallest, -0.5f * smallest, smallest, -smallest, 1e38f, -0.0f, 0.0f, 1.0f};
  std::vector<float> expected = before;
  expected[5] = 0;  // −0 + 0
  if (std::string(ops().numerics).find("wgmma") != std::string::npos) expected[0] = expected[1] = 0;
  const std::vector<Bf16Bits> x(8, RoundToBf16(0.0f)), w(64, RoundToBf16(1.0f));
  const std::vector<float> y = Run({1, 8, 8}, x, w, {.add = true, .before = before});
  ExpectSameBits(y.data(), expected.data(), y.size(), "y");
}

// The more multiprocessors, the fewer columns a block has: from 64 down to 8.
TEST_P(HopperGemmTest, ABlocksWidthChangesNoBit) {
  const int32_t n = 214, k = 8 * Uniform(20, 70);
  const std::vector<Bf16Bits> w = NormalBf16(static_cast<size_t>(n * k));
  const std::vector<Bf16Bits> x = NormalBf16(static_cast<size_t>(64 * k));
  std::set<int> widths;
  for (const int32_t rows : {1, 9, 17, 64}) {
    const gemm::WgmmaTile& tile =
        gemm::kWgmmaTiles[gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, rows, n, 1)];
    std::vector<float> first;
    for (const int32_t multiprocessors : {1, 3, 4, 5, 6, 7, 10, 14, 1000}) {
      widths.insert(gemm::ColumnsOfBlock(tile, rows, n, multiprocessors));
      const std::vector<float> y =
          Run({rows, n, k}, x, w, {.bias = true, .add = true, .multiprocessors = multiprocessors});
      if (first.empty()) first = y;
      ExpectSameBits(
          y.data(), first.data(), y.size(),
          std::to_string(rows) + " rows, " + std::to_string(multiprocessors) + " multiprocessors");
    }
  }
  EXPECT_GE(widths.size(), 6u) << "too few widths are tested";
}

TEST(WgmmaTile, NarrowerBlocksBringFewerBytesEach) {
  const auto width = [](int rows, int n) {
    const int tile = gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, rows, n, 132);
    return gemm::ColumnsOfBlock(gemm::kWgmmaTiles[tile], rows, n, 132);
  };
  EXPECT_EQ(width(1, 4096), 32) << "128 blocks on 132 multiprocessors instead of 64";
  EXPECT_EQ(width(64, 4096), 32);
  EXPECT_EQ(width(1, 6144), 48);
  EXPECT_EQ(width(1, 28672), 56) << "four rounds either way";
  EXPECT_EQ(width(1, 64 * 132), 64);
  EXPECT_EQ(width(1, 8), 8);
  EXPECT_EQ(width(128, 4096), 64) << "many rows: products decide, and one takes as long";
  EXPECT_EQ(width(2048, 4096), 128);
}

TEST(WgmmaTile, IsChosenByShapeAndFitsHopper) {
  EXPECT_EQ(gemm::kWgmmaTiles[gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, 1, 4096, 132)].rows, 8);
  EXPECT_EQ(gemm::kWgmmaTiles[gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, 9, 4096, 132)].rows, 16);
  EXPECT_EQ(gemm::kWgmmaTiles[gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, 64, 4096, 132)].rows, 64);
  EXPECT_EQ(gemm::kWgmmaTiles[gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, 128, 4096, 132)].rows, 64)
      << "wider tiles would leave multiprocessors idle";
  const gemm::WgmmaTile& wide =
      gemm::kWgmmaTiles[gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, 2048, 4096, 132)];
  EXPECT_TRUE(wide.rows == 256 && wide.cluster == 2);
  EXPECT_EQ(gemm::kWgmmaTiles[gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, 512, 4096, 132)].cluster, 1)
      << "blocks with one tile each gain nothing from a cluster";
  EXPECT_EQ(gemm::kWgmmaTiles[gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, 20480, 384, 132)].cluster, 1)
      << "every second cluster would have a block beyond the last column";
  for (const gemm::WgmmaTile& tile : gemm::kWgmmaTiles) {
    EXPECT_LE(tile.shared_bytes(), size_t{227} << 10);
    EXPECT_EQ(tile.n % 64, 0);
    EXPECT_LE(tile.consumers(), 2);
    EXPECT_EQ(tile.rows % 8, 0);
    EXPECT_LE(tile.rows, 256);
    EXPECT_EQ(tile.k % 64, 0);
    EXPECT_GE(tile.stages, 3);
    // Panels lie on multiples of 1024 bytes.
    EXPECT_EQ(tile.rows / tile.cluster * 128 % 1024, 0);
    if (tile.consumers() > 1) {
      EXPECT_LE(128 * (tile.copier_registers() + 2 * tile.consumer_registers()), 64 << 10);
      // What the accumulators leave for everything else.
      EXPECT_GE(tile.consumer_registers() - tile.rows / 2, 64);
    }
  }
}

TEST(WgmmaTile, PlacesVisitEveryTileOnceAndKeepNeighboursTogether) {
  for (int row_tiles : {1, 3, 8, 9, 21}) {
    for (int n_tiles : {1, 2, 7, 32}) {
      std::set<std::pair<int, int>> seen;
      int rows_at_once = 0;
      for (int i = 0; i < row_tiles * n_tiles; ++i) {
        const gemm::TilePlace at = gemm::PlaceOfTile(i, row_tiles, n_tiles);
        EXPECT_TRUE(at.row_tile >= 0 && at.row_tile < row_tiles);
        EXPECT_TRUE(at.n_tile >= 0 && at.n_tile < n_tiles);
        seen.emplace(at.row_tile, at.n_tile);
        if (i < 8 * n_tiles) rows_at_once = std::max(rows_at_once, at.row_tile + 1);
      }
      EXPECT_EQ(seen.size(), static_cast<size_t>(row_tiles * n_tiles));
      EXPECT_EQ(rows_at_once, std::min(row_tiles, gemm::kBandTiles));
    }
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
