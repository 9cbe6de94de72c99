// y[m, n] = Σ_k x[m, k] · w[n, k], bf16 operands, fp32 accumulators, for every projection.
//
// Grid: x = tiles of n, y = tiles of m. A block walks k in tiles of `tile.k`; operands come by
// 16-byte asynchronous copies into `tile.stages` stages of shared memory, rows beyond the matrix
// and columns beyond K as zeros. Warps compute m16n8k16 products with k ascending; nothing is split
// over K. So a row's bits depend on that row and on w alone (docs/NUMERICS.md, GEMM), whatever the
// tile. Shared memory: stage s holds x's tile [m][k], then w's [n][k], chunks swizzled. Bound:
// bytes of w for few rows; tensor cores for many.
#include "kernels/api/require.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/swizzle.h"
#include "kernels/cuda/gemm_config.h"
#include "kernels/cuda/gemm_epilogue.h"
#include "kernels/cuda/kernels.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

template <gemm::Tile kTile>
struct GemmKernel {
  using Params = DeviceGemmArgs;
  static constexpr const char* kName = "gemm kernel";
  static constexpr int kThreads = kTile.threads();
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr int kM = kTile.m, kN = kTile.n, kK = kTile.k;
  static constexpr int kStages = kTile.stages;
  static constexpr int kWarpsN = kTile.warps_n;
  static constexpr int kWarpM = kM / kTile.warps_m;
  static constexpr int kWarpN = kN / kWarpsN;
  static constexpr int kTilesM = kWarpM / 16;
  static constexpr int kTilesN = kWarpN / 8;
  static constexpr int kChunks = kK / 8;  // of a row of a tile
  static constexpr int kStageBytes = (kM + kN) * kK * 2;

  // Starts the copies of k tile `index` into its stage.
  TANDEM_KERNEL void LoadTile(const Params& p, int index) {
    char* stage = SharedMemory() + index % kStages * kStageBytes;
    const int first_m = BlockY() * kM, first_n = BlockX() * kN;
    for (int i = ThreadIndex(); i < (kM + kN) * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int k = index * kK + chunk * 8;
      const bool of_x = row < kM;
      const int matrix_row = of_x ? first_m + row : first_n + row - kM;
      const bool valid = k < p.k && matrix_row < (of_x ? p.rows : p.n);
      const Bf16Bits* base = of_x ? p.x : p.w;
      const Bf16Bits* from = valid ? base + int64_t{matrix_row} * p.k + k : base;
      // Both tiles are multiples of 8 rows, so one offset serves the two.
      CopyAsync16(stage + SwizzledOffset<kChunks>(row, chunk), from, valid);
    }
  }

  // Multiplies the warp's part of one k tile.
  TANDEM_KERNEL void Multiply(const char* stage, float acc[kTilesM][kTilesN][4]) {
    const int lane = LaneIndex();
    const int warp_m = WarpIndex() / kWarpsN * kWarpM;
    const int warp_n = kM + WarpIndex() % kWarpsN * kWarpN;
#pragma unroll
    for (int step = 0; step < kK / 16; ++step) {
      uint32_t a[kTilesM][4];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        // Matrices: rows 0-7 and 8-15 of k 0-7, then of k 8-15.
        const int row = warp_m + i * 16 + lane % 16;
        LoadMatrix4(a[i], stage + SwizzledOffset<kChunks>(row, step * 2 + lane / 16));
      }
      if constexpr (kTilesN == 1) {
        // Matrices: k 0-7 and k 8-15 of the eight columns; the upper lanes repeat them.
        const int row = warp_n + lane % 8;
        uint32_t b[4];
        LoadMatrix4(b, stage + SwizzledOffset<kChunks>(row, step * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) Mma(acc[i][0], a[i], b);
      } else {
#pragma unroll
        for (int j = 0; j < kTilesN; j += 2) {
          // Matrices: k 0-7 and 8-15 of eight columns, then of the next eight.
          const int row = warp_n + j * 8 + lane / 16 * 8 + lane % 8;
          uint32_t b[4];
          LoadMatrix4(b, stage + SwizzledOffset<kChunks>(row, step * 2 + lane / 8 % 2));
#pragma unroll
          for (int i = 0; i < kTilesM; ++i) {
            Mma(acc[i][j], a[i], b);
            Mma(acc[i][j + 1], a[i], b + 2);
          }
        }
      }
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    float acc[kTilesM][kTilesN][4] = {};
    const int tiles = (p.k + kK - 1) / kK;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < tiles) LoadTile(p, i);
      CommitCopies();
    }
    for (int i = 0; i < tiles; ++i) {
      WaitCopies<kStages - 2>();
      // Everybody's copies of tile i are there, and everybody is done with tile i − 1, whose stage
      // is the next to be filled.
      SyncThreads();
      if (i + kStages - 1 < tiles) LoadTile(p, i + kStages - 1);
      CommitCopies();
      Multiply(SharedMemory() + i % kStages * kStageBytes, acc);
    }
    WaitCopies<0>();
    const int first_m = BlockY() * kM + WarpIndex() / kWarpsN * kWarpM;
    const int first_n = BlockX() * kN + WarpIndex() % kWarpsN * kWarpN;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; e += 2) {
          StorePair(p, first_m + i * 16 + LaneIndex() / 4 + e / 2 * 8,
                    first_n + j * 8 + LaneIndex() % 4 * 2, {acc[i][j][e], acc[i][j][e + 1]});
        }
      }
    }
  }
};

template <gemm::Tile kTile>
void LaunchTile(const DeviceGemmArgs& args, DeviceStream& stream) {
  Launch<GemmKernel<kTile>>({.x = (args.n + kTile.n - 1) / kTile.n,
                             .y = (args.rows + kTile.m - 1) / kTile.m,
                             .threads = kTile.threads(),
                             .shared_bytes = kTile.shared_bytes()},
                            args, stream);
}

}  // namespace

void Gemm(const DeviceGemmArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.k % 8 == 0);
  KERNEL_REQUIRE(args.gated == nullptr || (args.n % 2 == 0 && !args.add_to_y));
  if (args.type == DeviceWeightType::kInt8) return GemmInt8(args, stream);
  if (args.type != DeviceWeightType::kBf16) return GemmWeightOnly(args, stream);
  const gemm::Tile& tile = gemm::ChooseTile(args.rows, args.n, args.multiprocessors);
  if (&tile == &gemm::kSmallTile) {
    LaunchTile<gemm::kSmallTile>(args, stream);
  } else if (&tile == &gemm::kMediumTile) {
    LaunchTile<gemm::kMediumTile>(args, stream);
  } else {
    LaunchTile<gemm::kLargeTile>(args, stream);
  }
}

}  // namespace tandem::kernels::TANDEM_SIMT
