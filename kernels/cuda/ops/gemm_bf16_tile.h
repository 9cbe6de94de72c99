// The bf16 product of one tile, for every kernel whose rows must have its bits: m16n8k16 steps with
// k ascending, no split over K, rows and columns beyond the matrices as zeros. Shared memory:
// stage s holds x's tile [m][k], then w's [n][k], chunks swizzled.
// Thread safety: device functions, called by all threads of a block together.
#pragma once

#include "kernels/api/bf16.h"
#include "kernels/cuda/ops/gemm_tile.h"

namespace tandem::kernels::TANDEM_SIMT {

template <gemm::Tile kTile>
struct Bf16Tile : TileOf<kTile> {
  using Tile = TileOf<kTile>;
  using Tile::kTilesM, Tile::kTilesN;
  static constexpr int kChunks = kTile.k / 8;  // of a row of a tile
  static_assert(kTilesN == 1 || kTilesN % 2 == 0);

  // Multiplies the warp's part of one k tile.
  TANDEM_KERNEL void Multiply(const char* stage, float acc[kTilesM][kTilesN][4]) {
    const int lane = LaneIndex();
    const int warp_n = Tile::kM + Tile::FirstN();
#pragma unroll
    for (int step = 0; step < kTile.k / 16; ++step) {
      uint32_t a[kTilesM][4];
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) Tile::template LoadA<kChunks>(stage, i, step * 2, a[i]);
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

  // Adds the products over k < `k_count`. x_row(i) and w_row(i) return the addresses of rows i
  // of the block's tiles, nullptr for rows beyond the matrix; `any` is any valid address.
  template <typename XRow, typename WRow>
  TANDEM_KERNEL void Accumulate(int k_count, const Bf16Bits* any, const XRow& x_row,
                                const WRow& w_row, float acc[kTilesM][kTilesN][4]) {
    const auto load = [&](int index, char* stage) {
      const auto chunk = [&](int row, int c) -> const Bf16Bits* {
        const int k = index * kTile.k + c * 8;
        const Bf16Bits* begin = row < Tile::kM ? x_row(row) : w_row(row - Tile::kM);
        return k < k_count && begin != nullptr ? begin + k : nullptr;
      };
      // Both tiles are multiples of 8 rows, so one offset serves the two.
      Tile::template CopyTile<Tile::kM + Tile::kN, kChunks>(
          stage, any, chunk, [](int row, int c) { return SwizzledOffset<kChunks>(row, c); });
    };
    Tile::Pipeline((k_count + kTile.k - 1) / kTile.k, load,
                   [&](int, const char* stage) { Multiply(stage, acc); });
  }
};

}  // namespace tandem::kernels::TANDEM_SIMT
