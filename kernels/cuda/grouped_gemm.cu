// The experts' matrix products: rows in order of their experts, each multiplied by its own expert's
// matrix, in one launch.
//
// Grid: x = tiles of n, y = tiles of m, where no tile holds rows of two experts: a block finds its
// tile by walking the experts' offsets, and there may be up to one short tile for each expert, so
// blocks beyond the last tile end at once. The product itself is gemm.cu's: m16n8k16 steps with k
// ascending, nothing split over K, rows and columns beyond the matrix as zeros. So a row's bits
// depend on that row and its expert's matrix alone, and are those of the plain product with it.
// Shared memory: stage s holds x's tile [m][k], then w's [n][k], chunks swizzled. Bound: bytes of
// the experts that have rows; tensor cores for many rows an expert.
#include "kernels/api/require.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/swizzle.h"
#include "kernels/cuda/gemm_config.h"
#include "kernels/cuda/kernels.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

template <gemm::Tile kTile>
struct GroupedGemmKernel {
  using Params = DeviceGroupedGemmArgs;
  static constexpr const char* kName = "grouped gemm kernel";
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
  static_assert(kTilesN == 1 || kTilesN % 2 == 0);

  // Consecutive rows of one expert.
  struct Rows {
    int expert = -1;  // −1: the grid has more blocks than there are tiles
    int first = 0, end = 0;
  };

  TANDEM_KERNEL Rows FindRows(const Params& p) {
    int tile = BlockY();
    int begin = p.offsets[0];
    for (int expert = 0; expert < p.num_experts; ++expert) {
      const int end = p.offsets[expert + 1];
      const int tiles = (end - begin + kM - 1) / kM;
      if (tile < tiles) {
        const int first = begin + tile * kM;
        return {expert, first, first + kM < end ? first + kM : end};
      }
      tile -= tiles;
      begin = end;
    }
    return {};
  }

  // Starts the copies of k tile `index` into its stage.
  TANDEM_KERNEL void LoadTile(const Params& p, const Rows& rows, int index) {
    char* stage = SharedMemory() + index % kStages * kStageBytes;
    const Bf16Bits* w = p.w + int64_t{rows.expert} * p.n * p.k;
    const int first_n = BlockX() * kN;
    for (int i = ThreadIndex(); i < (kM + kN) * kChunks; i += kThreads) {
      const int row = i / kChunks, chunk = i % kChunks;
      const int k = index * kK + chunk * 8;
      const bool of_x = row < kM;
      const int matrix_row = of_x ? rows.first + row : first_n + row - kM;
      const bool valid = k < p.k && matrix_row < (of_x ? rows.end : p.n);
      const Bf16Bits* from = of_x ? p.x : w;
      if (valid) {
        const int source = of_x && p.gather != nullptr ? p.gather[matrix_row] : matrix_row;
        from += int64_t{source} * p.k + k;
      }
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
        const int row = warp_m + i * 16 + lane % 16;
        LoadMatrix4(a[i], stage + SwizzledOffset<kChunks>(row, step * 2 + lane / 16));
      }
#pragma unroll
      for (int j = 0; j < kTilesN; j += 2) {
        // Matrices: k 0-7 and 8-15 of eight columns, then of the next eight, or of these again.
        const int next = kTilesN == 1 ? 0 : lane / 16 * 8;
        const int row = warp_n + j * 8 + next + lane % 8;
        uint32_t b[4];
        LoadMatrix4(b, stage + SwizzledOffset<kChunks>(row, step * 2 + lane / 8 % 2));
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
          Mma(acc[i][j], a[i], b);
          if constexpr (kTilesN > 1) Mma(acc[i][j + 1], a[i], b + 2);
        }
      }
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const Rows rows = FindRows(p);
    if (rows.expert < 0) return;  // the whole block
    float acc[kTilesM][kTilesN][4] = {};
    const int tiles = (p.k + kK - 1) / kK;
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < tiles) LoadTile(p, rows, i);
      CommitCopies();
    }
    for (int i = 0; i < tiles; ++i) {
      WaitCopies<kStages - 2>();
      // Everybody's copies of tile i are there, and everybody is done with tile i − 1, whose stage
      // is the next to be filled.
      SyncThreads();
      if (i + kStages - 1 < tiles) LoadTile(p, rows, i + kStages - 1);
      CommitCopies();
      Multiply(SharedMemory() + i % kStages * kStageBytes, acc);
    }
    WaitCopies<0>();
    const int first_m = rows.first + WarpIndex() / kWarpsN * kWarpM;
    const int first_n = BlockX() * kN + WarpIndex() % kWarpsN * kWarpN;
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < kTilesN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int m = first_m + i * 16 + LaneIndex() / 4 + e / 2 * 8;
          const int n = first_n + j * 8 + LaneIndex() % 4 * 2 + e % 2;
          if (m < rows.end && n < p.n) p.y[int64_t{m} * p.n + n] = acc[i][j][e];
        }
      }
    }
  }
};

template <gemm::Tile kTile>
void LaunchTile(const DeviceGroupedGemmArgs& args, DeviceStream& stream) {
  // Full tiles, and a short one for each expert that has rows.
  const int short_tiles = args.rows < args.num_experts ? args.rows : args.num_experts;
  Launch<GroupedGemmKernel<kTile>>({.x = (args.n + kTile.n - 1) / kTile.n,
                                    .y = args.rows / kTile.m + short_tiles,
                                    .threads = kTile.threads(),
                                    .shared_bytes = kTile.shared_bytes()},
                                   args, stream);
}

}  // namespace

void GroupedGemm(const DeviceGroupedGemmArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.k % 8 == 0 && args.num_experts > 0);
  // By how many rows an expert has on average; the choice changes no bit.
  if (args.rows <= gemm::kSmallTile.m * args.num_experts) {
    LaunchTile<gemm::kSmallTile>(args, stream);
  } else {
    LaunchTile<gemm::kMediumTile>(args, stream);
  }
}

}  // namespace tandem::kernels::TANDEM_SIMT
