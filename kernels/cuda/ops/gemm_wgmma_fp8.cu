// y = x·wᵀ on Hopper with e4m3 w and x (kernels/api/device_gemm.h, kFp8Rows; docs/adr/0029).
//
//   w[n, k] = sw[n]·ew[n, k]                     a scale for each row of w
//   x[m, k] ≈ sx[m, g]·ex[m, k]                  group g of 128 k, rounded by quantise.cu
//   sx[m, g] = max |x[m, k]| / 448               over the group
//   y[m, n] = sw[n]·Σ_g sx[m, g]·c[m, n, g]      one FMA chain, g ascending
//   c[m, n, g] = Σ_{k in g} ew·ex                four wgmma of 32 k, ascending, from zero
//
// The tensor core adds fp8 products in fewer bits than fp32 has (some 13 behind the point, aligned
// to the largest and truncated), so no sum stays in it for more than 128 k. However it adds, every
// tile uses the same instruction and no tile splits K: a row's bits depend on that row and on w
// alone (docs/NUMERICS.md, GEMM).
//
// gemm_wgmma_tile.h is the frame. A stage holds two groups: while the tensor cores multiply the
// second, the warpgroup adds the first's sums, scaled, in fp32; while it adds the second's, another
// warpgroup's products run. (Products that stay under way from one stage into the next would fill
// that gap too, but ptxas 13.0 then serialises them all: its remark C7514.) Bound: bytes of w for
// few rows; tensor cores for many (a thread does one FMA on sums for each 128 products).
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/ops/gemm_wgmma_tile.h"
#include "kernels/cuda/ops/launchers.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

template <int kTileIndex>
struct WgmmaFp8GemmKernel : WgmmaRing<gemm::kWgmmaFp8Tiles[kTileIndex]> {
  using Params = ScaledWgmmaParams;
  static constexpr const char* kName = "wgmma fp8 gemm kernel";
  static constexpr gemm::WgmmaTile kTile = gemm::kWgmmaFp8Tiles[kTileIndex];
  using Ring = WgmmaRing<kTile>;
  using Sums = float[Ring::kSums];
  // MultiplyTiles names both groups of a stage, each of which is one panel.
  static_assert(kTile.groups() == 2 && kTile.panels() == 2);

  static Params ParamsOf(const DeviceGemmArgs& args, DeviceStream& stream) {
    const int k = PaddedColumns(args.k), columns = ColumnsOf<kTile>(args);
    return {{DescribePanels({args.packed, args.n, k, columns, 1}, stream),
             DescribePanels({args.x_rounded, args.rows, k, Ring::kRowsOfBlock, 1}, stream),
             GateStrips<kTile>(args, stream), args, columns},
            DescribeRuns({args.x_scales, k / kFp8GroupSize, ScaleStride(args.rows), kTile.rows},
                         stream)};
  }

  // Starts the products of one group of a stage, w's rows from 64 · consumer.
  TANDEM_KERNEL void Multiply(Sums& acc, int stage, int group, int consumer) {
    const char* operands = Ring::StageOf(stage);
    const uint64_t w =
        PanelDescriptor(operands + group * PanelBytes(kTile.n) + consumer * PanelBytes(64), 0);
    const uint64_t x =
        PanelDescriptor(operands + 2 * PanelBytes(kTile.n) + group * PanelBytes(kTile.rows), 0);
    FenceProducts(acc);
#pragma unroll
    for (int step = 0; step < Ring::kSteps; ++step) {
      StartFp8Product(acc, DescriptorBehind(w, step * kStepBytes),
                      DescriptorBehind(x, step * kStepBytes), step > 0);
    }
    CommitProducts();
  }

  // Adds a group's products to the sums, scaled by its scales of x.
  TANDEM_KERNEL void AddScaled(Sums& sums, const Sums& acc, int stage, int group) {
    const float* scales = Ring::ScalesOf(stage, group) + LaneIndex() % 4 * 2;
#pragma unroll
    for (int j = 0; j < kTile.rows / 8; ++j) {
      const FloatPair scale = *reinterpret_cast<const FloatPair*>(scales + j * 8);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[j * 4 + i] =
            Fma(acc[j * 4 + i], i % 2 == 0 ? scale.first : scale.second, sums[j * 4 + i]);
      }
    }
  }

  TANDEM_KERNEL void Release(int stage) {
    SyncWarp();  // all lanes have read their scales
    Ring::Release(stage);
  }

  TANDEM_KERNEL void ScaleByWeights(const DeviceGemmArgs& p, Sums& sums, int first_n) {
    const float* scales = static_cast<const float*>(p.scales);
    const int n = first_n + WarpIndex() % kWarpgroupWarps * 16 + LaneIndex() / 4;
    const float scale[2] = {n < p.n ? scales[n] : 0.0f, n + 8 < p.n ? scales[n + 8] : 0.0f};
#pragma unroll
    for (int i = 0; i < Ring::kSums; ++i) sums[i] = Mul(sums[i], scale[i / 2 % 2]);
  }

  TANDEM_KERNEL void MultiplyTiles(const Params& p, int consumer) {
    const auto tiling = Ring::TilingOf(p);
    typename Ring::Cursor cursor;
    for (int t = Ring::FirstTile(); t < tiling.clusters(); t += Ring::Step()) {
      Sums sums = {}, first, second;
      for (int i = 0; i < tiling.k_tiles; ++i) {
        WaitPhase(Ring::FullBarrier(cursor.stage), cursor.parity);
        Multiply(first, cursor.stage, 0, consumer);
        Multiply(second, cursor.stage, 1, consumer);
        WaitProducts<1>(first);
        AddScaled(sums, first, cursor.stage, 0);
        WaitProducts<0>(second);
        AddScaled(sums, second, cursor.stage, 1);
        Release(cursor.stage);
        cursor.Next();
      }
      const gemm::TilePlace at = Ring::PlaceAt(t, tiling);
      ScaleByWeights(p.args, sums, at.n_tile * Ring::Columns(p) + consumer * 64);
      Ring::Store(p, sums, at, consumer);
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    Ring::RunRoles(p, [&](int consumer) { MultiplyTiles(p, consumer); });
  }
};

}  // namespace

void WgmmaGemmFp8(const DeviceGemmArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.type == DeviceWeightType::kFp8Rows && args.k % 8 == 0);
  KERNEL_REQUIRE(args.gated == nullptr || (args.n % 16 == 0 && !args.add_to_y));
  if (args.rows == 0 || args.n == 0) return;
  KERNEL_REQUIRE(args.tile < gemm::kNumWgmmaFp8Tiles);
  const int tile = args.tile >= 0 ? args.tile
                                  : gemm::ChooseWgmmaTile(gemm::kWgmmaFp8Tiles, args.rows, args.n,
                                                          args.multiprocessors);
  LaunchChosenRing<WgmmaFp8GemmKernel, gemm::kNumWgmmaFp8Tiles>(tile, args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
