// Tiles of the matrix products on Hopper, and the order in which blocks take them: plain host code.
// Every tile of a type of weights accumulates k in the same ascending steps with products of 64
// rows of w by `rows` rows of x, and k is never split, so the choice changes no result bit.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/device_gemm.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/ops/gemm_config.h"

namespace tandem::kernels::gemm {

// A block computes n columns of y (rows of w) for `rows` rows of x, k at a time. Each consumer
// warpgroup has 64 of the n; one more warpgroup copies. The blocks of a cluster compute
// neighbouring tiles in n, and each brings a part of x's rows for all of them.
struct WgmmaTile {
  int n, rows, k;
  int stages;  // tiles of operands in shared memory
  DeviceWeightType type = DeviceWeightType::kBf16;
  int cluster = 1;  // blocks

  constexpr int element_bytes() const { return type == DeviceWeightType::kBf16 ? 2 : 1; }
  constexpr int consumers() const { return n / 64; }
  constexpr int threads() const { return (consumers() + 1) * 128; }
  constexpr int panels() const { return k * element_bytes() / 128; }  // of each operand in a stage
  constexpr int operand_bytes() const { return (n + rows) * k * element_bytes(); }  // of a stage
  // Scales of x that a stage brings along: a run of fp32 numbers for each group of k, which begins
  // on a multiple of 128 bytes.
  constexpr int groups() const { return type == DeviceWeightType::kBf16 ? 0 : k / kFp8GroupSize; }
  constexpr int run_bytes() const { return rows * 4; }
  constexpr int run_stride() const { return (run_bytes() + 127) / 128 * 128; }
  constexpr int stage_bytes() const { return operand_bytes() + groups() * run_bytes(); }
  // Registers a thread after warpgroups have exchanged them, 0 where none are exchanged: what the
  // register file gives 128 copying and 256 multiplying threads, in steps of 8.
  constexpr int copier_registers() const { return consumers() == 2 ? 40 : 0; }
  constexpr int consumer_registers() const { return consumers() == 2 ? 232 : 0; }
  // A consumer's values of a gate, bf16, on their way to memory.
  constexpr int strip_bytes() const { return rows * 64; }
  // Where scales, strips and then barriers begin: behind the operands of all stages, so that these
  // stay on multiples of 1024.
  constexpr int scales_offset() const { return stages * operand_bytes(); }
  constexpr int strips_offset() const { return scales_offset() + stages * groups() * run_stride(); }
  constexpr int barriers_offset() const { return strips_offset() + consumers() * strip_bytes(); }
  // Includes two barriers of 8 bytes for each stage, and room to begin on a multiple of 1024.
  constexpr size_t shared_bytes() const {
    return static_cast<size_t>(barriers_offset() + stages * 16) + 1024;
  }
};

// Few rows: bound by bytes of w, so the tiles give as many narrow blocks as possible, each with
// some 150 KB of copies in flight. More rows: still 64 columns, while wider tiles would leave
// multiprocessors idle. Many rows: bound by what a multiprocessor gets from the L2, so that two
// blocks share the rows of x (docs/kernels/gemm_hopper.md).
inline constexpr DeviceWeightType kBf16Rows = DeviceWeightType::kBf16;
inline constexpr WgmmaTile kWgmmaTiles[] = {
    {64, 8, 128, 8},
    {64, 16, 128, 8},
    {64, 32, 128, 7},
    {64, 64, 128, 6},
    {64, 128, 64, 8},
    {128, 128, 64, 6},
    {128, 128, 64, 6, kBf16Rows, 2},
    {128, 256, 64, 4},
    {128, 256, 64, 4, kBf16Rows, 2},
};
inline constexpr int kNumWgmmaTiles = sizeof(kWgmmaTiles) / sizeof(kWgmmaTiles[0]);

// Of e4m3: two groups of k at a time, one multiplied while the other's sums are scaled. A thread
// has three sets of sums, which is why no tile has 256 rows.
inline constexpr DeviceWeightType kRows = DeviceWeightType::kFp8Rows;
inline constexpr WgmmaTile kWgmmaFp8Tiles[] = {
    {64, 8, 256, 8, kRows},       {64, 16, 256, 8, kRows},  {64, 32, 256, 7, kRows},
    {64, 64, 256, 6, kRows},      {64, 128, 256, 4, kRows}, {128, 128, 256, 3, kRows},
    {128, 128, 256, 3, kRows, 2},
};
inline constexpr int kNumWgmmaFp8Tiles = sizeof(kWgmmaFp8Tiles) / sizeof(kWgmmaFp8Tiles[0]);

// DeviceOps::gemm_tile on Hopper: other types of weights have the portable kernels.
constexpr DeviceGemmTile DescribeTileOnHopper(DeviceWeightType type, int32_t index) {
  const bool is_bf16 = type == DeviceWeightType::kBf16;
  if (!is_bf16 && type != DeviceWeightType::kFp8Rows) return DescribeTile(type, index);
  if (index < 0 || index >= (is_bf16 ? kNumWgmmaTiles : kNumWgmmaFp8Tiles)) return {};
  const WgmmaTile& tile = is_bf16 ? kWgmmaTiles[index] : kWgmmaFp8Tiles[index];
  return {tile.rows, tile.n, tile.k, tile.stages, tile.shared_bytes(), tile.cluster};
}

// The tiles of y that blocks compute, those of a cluster side by side in n. The last cluster's may
// lie beyond y.
struct WgmmaTiling {
  int row_tiles, clusters_in_n, k_tiles;

  constexpr int clusters() const { return row_tiles * clusters_in_n; }
};
// `columns` of y for each block.
constexpr WgmmaTiling TileProduct(const WgmmaTile& tile, int columns, int rows, int n, int k) {
  const int of_cluster = columns * tile.cluster;
  return {(rows + tile.rows - 1) / tile.rows, (n + of_cluster - 1) / of_cluster,
          (k + tile.k - 1) / tile.k};
}
// Blocks that have something to compute, counting the tiles of clusters that lie beyond y.
constexpr int64_t CountWgmmaTiles(const WgmmaTile& tile, int64_t rows, int64_t n) {
  const WgmmaTiling tiling =
      TileProduct(tile, tile.n, static_cast<int>(rows), static_cast<int>(n), 1);
  return int64_t{tiling.clusters()} * tile.cluster;
}

// The columns of y that a block computes: the tile's, or fewer for up to 64 rows of x, where bytes
// decide. A block brings the rows of w of its columns, and x, once for each of its tiles; the
// width that gives the busiest block the fewest bytes wins, the wider of two equal ones. The
// instruction still multiplies 64 rows of w: it finds the others in shared memory as they are, and
// StoreSums drops their sums. REQUIRES: no gate, whose strips have the tile's width.
inline constexpr int kWidthStep = 8;  // a swizzled panel repeats every eight rows
constexpr int ColumnsOfBlock(const WgmmaTile& tile, int64_t rows, int64_t n, int multiprocessors) {
  if (tile.consumers() > 1 || tile.rows > 64 || rows > tile.rows) return tile.n;
  int best = tile.n;
  int64_t least = 0;
  for (int width = tile.n; width >= kWidthStep; width -= kWidthStep) {
    const int64_t tiles = (n + width - 1) / width;
    const int64_t rounds = (tiles + multiprocessors - 1) / multiprocessors;
    const int64_t bytes = rounds * (width + tile.rows);
    if (width < tile.n && bytes >= least) continue;
    best = width;
    least = bytes;
  }
  return best;
}

// An index of `tiles`: up to 64 rows the narrowest tile that holds them; beyond, the widest that
// gives nearly every multiprocessor one, is at most half empty, and has no block of a cluster
// beyond y. Blocks that have one tile each gain nothing from a cluster: the multiprocessors of an
// odd group cannot pair up (docs/measurements/2026-11-26-h200.md). REQUIRES: four tiles of 8, 16,
// 32 and 64 rows come first.
template <int kCount>
constexpr int ChooseWgmmaTile(const WgmmaTile (&tiles)[kCount], int64_t rows, int64_t n,
                              int multiprocessors) {
  for (int i = 0; i < 3; ++i) {
    if (rows <= tiles[i].rows) return i;
  }
  for (int i = kCount - 1; i > 3; --i) {
    const WgmmaTile& tile = tiles[i];
    if (2 * rows <= tile.rows || (n + tile.n - 1) / tile.n % tile.cluster != 0) continue;
    const int64_t blocks = CountWgmmaTiles(tile, rows, n);
    if (tile.cluster > 1 && blocks <= multiprocessors) continue;
    if (4 * blocks >= 3 * int64_t{multiprocessors}) return i;
  }
  return 3;
}

// The place of the index-th tile of y. Tiles go in bands of kBandTiles tiles of rows, rows first in
// each band, so that tiles computed at the same time share both operands in the L2.
struct TilePlace {
  int row_tile, n_tile;
};
inline constexpr int kBandTiles = 8;
constexpr TilePlace PlaceOfTile(int index, int row_tiles, int n_tiles) {
  const int band = index / (kBandTiles * n_tiles);
  const int first = band * kBandTiles;
  const int width = row_tiles - first < kBandTiles ? row_tiles - first : kBandTiles;
  const int within = index - first * n_tiles;
  return {first + within % width, within / width};
}

}  // namespace tandem::kernels::gemm
