// y[m, n] = Σ_k x[m, k] · w[n, k] on Hopper: bf16 operands, fp32 accumulators
// (kernels/api/device_gemm.h, kBf16).
//
// gemm_wgmma_tile.h is the frame: 64 rows of w by 8 to 256 rows of x in an instruction, k
// ascending in steps of 16, nothing split over K. A row's bits depend on that row and on w alone
// (docs/NUMERICS.md, GEMM), whatever the tile. Bound: bytes of w for few rows; tensor cores for
// many.
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/ops/gemm_wgmma_tile.h"
#include "kernels/cuda/ops/launchers.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

template <int kTileIndex>
struct WgmmaGemmKernel : WgmmaRing<gemm::kWgmmaTiles[kTileIndex]> {
  using Params = WgmmaParams;
  static constexpr const char* kName = "wgmma gemm kernel";
  static constexpr gemm::WgmmaTile kTile = gemm::kWgmmaTiles[kTileIndex];
  using Ring = WgmmaRing<kTile>;

  static Params ParamsOf(const DeviceGemmArgs& args, DeviceStream& stream) {
    const int columns = ColumnsOf<kTile>(args);
    return {DescribePanels({args.w, args.n, args.k, columns}, stream),
            DescribePanels({args.x, args.rows, args.k, Ring::kRowsOfBlock}, stream),
            GateStrips<kTile>(args, stream), args, columns};
  }

  // Starts the products of one stage, w's rows from 64 · consumer.
  TANDEM_KERNEL void Multiply(float (&acc)[Ring::kSums], const char* stage, int consumer,
                              bool accumulate) {
    const uint64_t w = PanelDescriptor(stage + consumer * PanelBytes(64), 0);
    const uint64_t x = PanelDescriptor(stage + kTile.panels() * PanelBytes(kTile.n), 0);
    FenceProducts(acc);
#pragma unroll
    for (int panel = 0; panel < kTile.panels(); ++panel) {
#pragma unroll
      for (int step = 0; step < Ring::kSteps; ++step) {
        const int at = step * kStepBytes;
        StartProduct(acc, DescriptorBehind(w, panel * PanelBytes(kTile.n) + at),
                     DescriptorBehind(x, panel * PanelBytes(kTile.rows) + at),
                     accumulate || panel + step > 0);
      }
    }
    CommitProducts();
  }

  TANDEM_KERNEL void MultiplyTiles(const Params& p, int consumer) {
    const auto tiling = Ring::TilingOf(p);
    typename Ring::Cursor cursor;
    for (int t = Ring::FirstTile(); t < tiling.clusters(); t += Ring::Step()) {
      float acc[Ring::kSums];
      int previous = 0;
      for (int i = 0; i < tiling.k_tiles; ++i) {
        WaitPhase(Ring::FullBarrier(cursor.stage), cursor.parity);
        Multiply(acc, Ring::StageOf(cursor.stage), consumer, i > 0);
        // While the tensor cores work on this stage, release the previous one.
        WaitProducts<1>(acc);
        if (i > 0) Ring::Release(previous);
        previous = cursor.stage;
        cursor.Next();
      }
      WaitProducts<0>(acc);
      Ring::Release(previous);
      Ring::Store(p, acc, Ring::PlaceAt(t, tiling), consumer);
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    Ring::RunRoles(p, [&](int consumer) { MultiplyTiles(p, consumer); });
  }
};

}  // namespace

void WgmmaGemm(const DeviceGemmArgs& args, DeviceStream& stream) {
  if (args.type == DeviceWeightType::kFp8Rows) return WgmmaGemmFp8(args, stream);
  if (args.type != DeviceWeightType::kBf16) return Gemm(args, stream);
  KERNEL_REQUIRE(args.k % 8 == 0);
  KERNEL_REQUIRE(args.gated == nullptr || (args.n % 16 == 0 && !args.add_to_y));
  if (args.rows == 0 || args.n == 0) return;
  KERNEL_REQUIRE(args.tile < gemm::kNumWgmmaTiles);
  const int tile = args.tile >= 0 ? args.tile
                                  : gemm::ChooseWgmmaTile(gemm::kWgmmaTiles, args.rows, args.n,
                                                          args.multiprocessors);
  LaunchChosenRing<WgmmaGemmKernel, gemm::kNumWgmmaTiles>(tile, args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
