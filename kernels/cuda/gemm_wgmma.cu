// y[m, n] = Σ_k x[m, k] · w[n, k] on Hopper: bf16 operands, fp32 accumulators.
//
// The operands are swapped: a warpgroup multiplies 64 rows of w (A) by 8 to 256 rows of x (B), so
// that few rows of x do not pay for 64, and one form of the instruction's sum serves every number
// of rows: k ascends in steps of 16, nothing is split over K. A row's bits depend on that row and
// on w alone (docs/NUMERICS.md, GEMM), whatever the tile.
//
// Grid: at most one block for each multiprocessor, each walking tiles of y in the order of
// PlaceOfTile. In a block one warpgroup only copies: panels of w and x come by bulk tensor copies
// into `stages` stages, zeros beyond the matrices, and it runs ahead into the next tile while the
// consumers store theirs. Barriers of stage s: full[s] ends when its bytes are there, empty[s] when
// each consumer warp is done with it. Shared memory: stage s holds w's panels [k / 64][n][64], then
// x's [k / 64][rows][64]; barriers behind the stages. Bound: bytes of w for few rows; tensor cores
// for many.
#include "kernels/api/require.h"
#include "kernels/cuda/device/hopper.h"
#include "kernels/cuda/gemm_epilogue.h"
#include "kernels/cuda/gemm_wgmma_config.h"
#include "kernels/cuda/kernels.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

template <int kTileIndex>
struct WgmmaGemmKernel {
  struct Params {
    PanelMap w, x;
    DeviceGemmArgs args;
  };
  static constexpr const char* kName = "wgmma gemm kernel";
  static constexpr gemm::WgmmaTile kTile = gemm::kWgmmaTiles[kTileIndex];
  static constexpr int kThreads = kTile.threads();
  static constexpr int kBlocksPerMultiprocessor = 1;

  // Where a thread is in the ring of stages.
  struct Turn {
    int stage = 0;
    int parity = 0;

    TANDEM_DEVICE void Next() {
      if (++stage == kTile.stages) {
        stage = 0;
        parity ^= 1;
      }
    }
  };
  struct Tiling {
    int row_tiles, n_tiles, k_tiles;
  };

  TANDEM_KERNEL Tiling TilingOf(const DeviceGemmArgs& args) {
    return {(args.rows + kTile.rows - 1) / kTile.rows, (args.n + kTile.n - 1) / kTile.n,
            (args.k + kTile.k - 1) / kTile.k};
  }
  TANDEM_KERNEL char* StageOf(int stage) { return PanelMemory() + stage * kTile.stage_bytes(); }
  TANDEM_KERNEL Barrier* FullBarrier(int stage) {
    return reinterpret_cast<Barrier*>(PanelMemory() + kTile.stages * kTile.stage_bytes()) + stage;
  }
  TANDEM_KERNEL Barrier* EmptyBarrier(int stage) { return FullBarrier(kTile.stages + stage); }

  // One thread: fills stage after stage with the operands of this block's tiles.
  TANDEM_KERNEL void CopyTiles(const Params& p) {
    const Tiling tiling = TilingOf(p.args);
    PrefetchMap(p.w);
    PrefetchMap(p.x);
    Turn turn;
    for (int t = BlockX(); t < tiling.row_tiles * tiling.n_tiles; t += GridX()) {
      const gemm::TilePlace at = gemm::PlaceOfTile(t, tiling.row_tiles, tiling.n_tiles);
      for (int i = 0; i < tiling.k_tiles; ++i) {
        // The first time round, the phase "before" the first counts as ended.
        WaitPhase(EmptyBarrier(turn.stage), turn.parity ^ 1);
        Barrier* full = FullBarrier(turn.stage);
        ArriveExpecting(full, kTile.stage_bytes());
        char* w = StageOf(turn.stage);
        char* x = w + kTile.panels() * PanelBytes(kTile.n);
#pragma unroll
        for (int panel = 0; panel < kTile.panels(); ++panel) {
          const int k = i * kTile.k + panel * kPanelColumns;
          CopyPanel(w + panel * PanelBytes(kTile.n), p.w, at.n_tile * kTile.n, k, full);
          CopyPanel(x + panel * PanelBytes(kTile.rows), p.x, at.row_tile * kTile.rows, k, full);
        }
        turn.Next();
      }
    }
  }

  // Starts the products of one stage, w's rows from 64 · consumer.
  TANDEM_KERNEL void Multiply(float (&acc)[kTile.rows / 2], const char* stage, int consumer,
                              bool accumulate) {
    const char* w = stage + consumer * PanelBytes(64);
    const char* x = stage + kTile.panels() * PanelBytes(kTile.n);
    FenceProducts(acc);
#pragma unroll
    for (int panel = 0; panel < kTile.panels(); ++panel) {
#pragma unroll
      for (int step = 0; step < kPanelColumns / 16; ++step) {
        StartProduct(acc, PanelDescriptor(w + panel * PanelBytes(kTile.n), step),
                     PanelDescriptor(x + panel * PanelBytes(kTile.rows), step),
                     accumulate || panel + step > 0);
      }
    }
    CommitProducts();
  }

  TANDEM_KERNEL void Release(int stage) {
    if (LaneIndex() == 0) Arrive(EmptyBarrier(stage));
  }

  TANDEM_KERNEL void MultiplyTiles(const Params& p, int consumer) {
    const Tiling tiling = TilingOf(p.args);
    Turn turn;
    for (int t = BlockX(); t < tiling.row_tiles * tiling.n_tiles; t += GridX()) {
      float acc[kTile.rows / 2];
      int previous = 0;
      for (int i = 0; i < tiling.k_tiles; ++i) {
        WaitPhase(FullBarrier(turn.stage), turn.parity);
        Multiply(acc, StageOf(turn.stage), consumer, i > 0);
        // The tensor cores go on with this stage while the previous one is given back.
        WaitProducts<1>(acc);
        if (i > 0) Release(previous);
        previous = turn.stage;
        turn.Next();
      }
      WaitProducts<0>(acc);
      Release(previous);
      const gemm::TilePlace at = gemm::PlaceOfTile(t, tiling.row_tiles, tiling.n_tiles);
      const int first_row = at.row_tile * kTile.rows;
      const int first_n = at.n_tile * kTile.n + consumer * 64;
      // Two unrolled copies, so that the plain one does not step over the gate's long code.
      DeviceGemmArgs plain = p.args;
      plain.gated = nullptr;
      if (p.args.gated == nullptr) {
        Store(plain, acc, first_row, first_n);
      } else {
        Store(p.args, acc, first_row, first_n);
      }
    }
  }

  // The accumulators are those of yᵀ: a thread has two rows of y in one column. Lanes four apart
  // hold neighbouring columns and exchange, after which each has one row in two columns.
  TANDEM_KERNEL void Store(const DeviceGemmArgs& p, const float (&acc)[kTile.rows / 2],
                           int first_row, int first_n) {
    const int lane = LaneIndex();
    const int odd = lane / 4 % 2;
    const int n = first_n + WarpIndex() % kWarpgroupWarps * 16 + lane / 8 * 2;
#pragma unroll
    for (int j = 0; j < kTile.rows / 8; ++j) {
      const int row = first_row + j * 8 + lane % 4 * 2 + odd;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float first = acc[j * 4 + half * 2], second = acc[j * 4 + half * 2 + 1];
        const float other = ShuffleXor(odd != 0 ? first : second, 4);
        StorePair(p, row, n + half * 8, {odd != 0 ? other : first, odd != 0 ? second : other});
      }
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    if constexpr (!kCompilesForHopper) {
      Trap();
    } else {
      if (ThreadIndex() == 0) {
        for (int stage = 0; stage < kTile.stages; ++stage) {
          InitBarrier(FullBarrier(stage), 1);
          InitBarrier(EmptyBarrier(stage), kTile.consumers() * kWarpgroupWarps);
        }
        FenceBarrierInit();
      }
      SyncThreads();
      const int warpgroup = WarpgroupIndex();
      if (warpgroup == kTile.consumers()) {
        GiveRegisters<kTile.copier_registers()>();
        if (WarpIndex() == kTile.consumers() * kWarpgroupWarps && ElectOne()) CopyTiles(p);
      } else {
        TakeRegisters<kTile.consumer_registers()>();
        MultiplyTiles(p, warpgroup);
      }
    }
  }
};

template <int kTileIndex>
void LaunchTile(const DeviceGemmArgs& args, DeviceStream& stream) {
  using Kernel = WgmmaGemmKernel<kTileIndex>;
  constexpr gemm::WgmmaTile kTile = Kernel::kTile;
  const PanelMap w = DescribePanels({args.w, args.n, args.k, kTile.n}, stream);
  const PanelMap x = DescribePanels({args.x, args.rows, args.k, kTile.rows}, stream);
  const int64_t tiles = gemm::CountWgmmaTiles(kTile, args.rows, args.n);
  const int64_t blocks = tiles < args.multiprocessors ? tiles : args.multiprocessors;
  Launch<Kernel>({.x = static_cast<int>(blocks),
                  .threads = Kernel::kThreads,
                  .shared_bytes = kTile.shared_bytes()},
                 {w, x, args}, stream);
}

template <int kTileIndex = 0>
void LaunchChosen(int chosen, const DeviceGemmArgs& args, DeviceStream& stream) {
  if constexpr (kTileIndex < gemm::kNumWgmmaTiles) {
    if (chosen == kTileIndex) {
      LaunchTile<kTileIndex>(args, stream);
    } else {
      LaunchChosen<kTileIndex + 1>(chosen, args, stream);
    }
  }
}

}  // namespace

void WgmmaGemm(const DeviceGemmArgs& args, DeviceStream& stream) {
  if (args.type != DeviceWeightType::kBf16) return Gemm(args, stream);
  KERNEL_REQUIRE(args.k % 8 == 0);
  KERNEL_REQUIRE(args.gated == nullptr || (args.n % 2 == 0 && !args.add_to_y));
  if (args.rows == 0 || args.n == 0) return;
  KERNEL_REQUIRE(args.tile < gemm::kNumWgmmaTiles);
  LaunchChosen(
      args.tile >= 0 ? args.tile : gemm::ChooseWgmmaTile(args.rows, args.n, args.multiprocessors),
      args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
