// The experts' matrix products (kernels/api/device_experts.h): rows in order of their experts, each
// multiplied by its own expert's matrix, in one launch.
//
// Grid: x = tiles of n, y = tiles of m, where no tile holds rows of two experts: a block finds its
// tile by walking the experts' offsets, and there may be up to one short tile for each expert, so
// blocks beyond the last tile end at once. The product itself is gemm_bf16_tile.h's. So a row's
// bits depend on that row and its expert's matrix alone, and are those of the plain product with
// it. Bound: bytes of the experts that have rows; tensor cores for many rows an expert.
#include "kernels/api/bf16.h"
#include "kernels/api/device_experts.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/gemm_bf16_tile.h"
#include "kernels/cuda/ops/launchers.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

template <gemm::Tile kTile>
struct GroupedGemmKernel : Bf16Tile<kTile> {
  using Params = DeviceGroupedGemmArgs;
  static constexpr const char* kName = "grouped gemm kernel";
  static constexpr int kBlocksPerMultiprocessor = 1;
  using Tile = Bf16Tile<kTile>;

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
      const int tiles = (end - begin + kTile.m - 1) / kTile.m;
      if (tile < tiles) {
        const int first = begin + tile * kTile.m;
        return {expert, first, first + kTile.m < end ? first + kTile.m : end};
      }
      tile -= tiles;
      begin = end;
    }
    return {};
  }

  TANDEM_KERNEL void Run(const Params& p) {
    const Rows rows = FindRows(p);
    if (rows.expert < 0) return;  // the whole block
    const Bf16Bits* w = p.w + int64_t{rows.expert} * p.n * p.k;
    const int block_n = BlockX() * kTile.n;
    float acc[Tile::kTilesM][Tile::kTilesN][4] = {};
    const auto x_row = [&](int row) -> const Bf16Bits* {
      const int m = rows.first + row;
      if (m >= rows.end) return nullptr;
      return p.x + int64_t{p.gather != nullptr ? p.gather[m] : m} * p.k;
    };
    const auto w_row = [&](int row) {
      return block_n + row < p.n ? w + int64_t{block_n + row} * p.k : nullptr;
    };
    Tile::Accumulate(p.k, p.x, x_row, w_row, acc);
    const int first_m = rows.first + Tile::FirstM() + LaneIndex() / 4;
    const int first_n = block_n + Tile::FirstN() + LaneIndex() % 4 * 2;
#pragma unroll
    for (int i = 0; i < Tile::kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kTilesN; ++j) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int m = first_m + i * 16 + e / 2 * 8, n = first_n + j * 8 + e % 2;
          if (m < rows.end && n < p.n) p.y[int64_t{m} * p.n + n] = acc[i][j][e];
        }
      }
    }
  }
};

template <gemm::Tile kTile>
void LaunchTile(const DeviceGroupedGemmArgs& args, DeviceStream& stream) {
  // An upper bound: all full tiles, and a short one for each expert.
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
  // Choose the tile by the average number of rows of an expert; the choice changes no bit.
  if (args.rows <= gemm::kSmallTile.m * args.num_experts) {
    LaunchTile<gemm::kSmallTile>(args, stream);
  } else {
    LaunchTile<gemm::kMediumTile>(args, stream);
  }
}

}  // namespace tandem::kernels::TANDEM_SIMT
