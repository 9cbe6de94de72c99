// Tiles of the matrix product on Hopper, and the order in which blocks take them: plain host code.
// Every tile accumulates k in ascending steps of 16 with products of 64 rows of w by `rows` rows of
// x, and k is never split, so the choice changes no result bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/gemm_config.h"

namespace tandem::kernels::gemm {

// A block computes n columns of y (rows of w) for `rows` rows of x, k at a time. Each consumer
// warpgroup has 64 of the n; one more warpgroup copies.
struct WgmmaTile {
  int n, rows, k;
  int stages;  // tiles of operands in shared memory

  constexpr int consumers() const { return n / 64; }
  constexpr int threads() const { return (consumers() + 1) * 128; }
  constexpr int panels() const { return k / 64; }  // of each operand in a stage
  constexpr int stage_bytes() const { return (n + rows) * k * 2; }
  // Registers a thread after warpgroups have exchanged them, 0 where none are exchanged: what the
  // register file gives 128 copying and 256 multiplying threads, in steps of 8.
  constexpr int copier_registers() const { return consumers() == 2 ? 40 : 0; }
  constexpr int consumer_registers() const { return consumers() == 2 ? 232 : 0; }
  // Stages, two barriers of 8 bytes for each, and room to begin on a multiple of 1024.
  constexpr size_t shared_bytes() const {
    return static_cast<size_t>(stages) * static_cast<size_t>(stage_bytes() + 16) + 1024;
  }
};

// Few rows: bound by bytes of w, so as many narrow blocks as there can be, each with some 150 KB on
// their way. More: 64 columns still, while wider tiles would leave multiprocessors idle.
inline constexpr WgmmaTile kWgmmaTiles[] = {
    {64, 8, 128, 8},  {64, 16, 128, 8},  {64, 32, 128, 7},  {64, 64, 128, 6},
    {64, 128, 64, 8}, {128, 128, 64, 6}, {128, 256, 64, 4},
};
inline constexpr int kNumWgmmaTiles = sizeof(kWgmmaTiles) / sizeof(kWgmmaTiles[0]);

// DeviceOps::gemm_tile on Hopper: other weights than bf16 have the portable kernels.
constexpr DeviceGemmTile DescribeTileOnHopper(DeviceWeightType type, int32_t index) {
  if (type != DeviceWeightType::kBf16) return DescribeTile(type, index);
  if (index < 0 || index >= kNumWgmmaTiles) return {};
  const WgmmaTile& tile = kWgmmaTiles[index];
  return {tile.rows, tile.n, tile.k, tile.stages, tile.shared_bytes()};
}

constexpr int64_t CountWgmmaTiles(const WgmmaTile& tile, int64_t rows, int64_t n) {
  return (rows + tile.rows - 1) / tile.rows * ((n + tile.n - 1) / tile.n);
}

// An index of kWgmmaTiles: up to 64 rows the narrowest tile that holds them; beyond, the widest
// that gives nearly every multiprocessor one and is at most half empty.
constexpr int ChooseWgmmaTile(int64_t rows, int64_t n, int multiprocessors) {
  for (int i = 0; i < 3; ++i) {
    if (rows <= kWgmmaTiles[i].rows) return i;
  }
  for (int i = kNumWgmmaTiles - 1; i > 3; --i) {
    const WgmmaTile& tile = kWgmmaTiles[i];
    if (2 * rows <= tile.rows) continue;
    if (4 * CountWgmmaTiles(tile, rows, n) >= 3 * int64_t{multiprocessors}) return i;
  }
  return 3;
}

// Which tile of y is the index-th: bands of kBandTiles tiles of rows, in each of them rows first,
// so that the tiles computed at one time share both operands in the L2.
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
