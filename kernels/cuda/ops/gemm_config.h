// Chooses the tile of a matrix product by its shape: plain host code. Every tile of a type of
// weights accumulates k in the same ascending steps with the same instruction and no split over K,
// so the choice changes no result bit. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/device_gemm.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"

namespace tandem::kernels::gemm {

// A block computes m × n outputs, k at a time; its warps split it warps_m × warps_n.
struct Tile {
  int m, n, k;
  int warps_m, warps_n;
  int stages;  // tiles of operands in shared memory: one is computed on, copies fill the others
  DeviceWeightType type = DeviceWeightType::kBf16;

  constexpr int threads() const { return warps_m * warps_n * 32; }
  // Bytes of one stage: x's tile, then w's, then their scales.
  constexpr int x_bytes() const { return m * k * (type == DeviceWeightType::kInt8 ? 1 : 2); }
  constexpr int w_bytes() const {
    if (type == DeviceWeightType::kBf16) return n * k * 2;
    return type == DeviceWeightType::kInt4 ? n * k / 2 : n * k;
  }
  constexpr int scale_bytes() const {
    if (type == DeviceWeightType::kInt8) return m * (k / kInt8GroupSize) * 4;
    return type == DeviceWeightType::kInt4 ? n * (k / 32) * 4 : 0;
  }
  constexpr int stage_bytes() const { return x_bytes() + w_bytes() + scale_bytes(); }
  constexpr size_t shared_bytes() const { return static_cast<size_t>(stage_bytes() * stages); }
};

// Decoding: each weight is read once, so use many narrow blocks with many bytes in flight.
inline constexpr Tile kSmallTile = {16, 32, 128, 1, 4, 4};
inline constexpr Tile kMediumTile = {64, 64, 64, 2, 2, 3};
// Prompts: use wide tiles, which reuse operands from shared memory.
inline constexpr Tile kLargeTile = {128, 128, 64, 2, 4, 3};

// The tiles of each type of weights. k of types other than bf16 is chosen to keep as many bytes
// under way.
struct Tiles {
  Tile small, medium, large;
};
inline constexpr Tiles kBf16Tiles = {kSmallTile, kMediumTile, kLargeTile};
inline constexpr Tiles kInt8Tiles = {{16, 32, 256, 1, 4, 4, DeviceWeightType::kInt8},
                                     {64, 64, 128, 2, 2, 3, DeviceWeightType::kInt8},
                                     {128, 128, 128, 2, 4, 3, DeviceWeightType::kInt8}};
inline constexpr Tiles kInt4Tiles = {{16, 32, 256, 1, 4, 4, DeviceWeightType::kInt4},
                                     {64, 64, 128, 2, 2, 3, DeviceWeightType::kInt4},
                                     {128, 128, 128, 2, 4, 2, DeviceWeightType::kInt4}};
inline constexpr Tiles kFp8Tiles = {{16, 32, 256, 1, 4, 4, DeviceWeightType::kFp8},
                                    {64, 64, 128, 2, 2, 3, DeviceWeightType::kFp8},
                                    {128, 128, 64, 2, 4, 3, DeviceWeightType::kFp8}};

constexpr const Tiles& TilesOf(DeviceWeightType type) {
  switch (type) {
    case DeviceWeightType::kInt8:
      return kInt8Tiles;
    case DeviceWeightType::kInt4:
      return kInt4Tiles;
    case DeviceWeightType::kFp8:
      return kFp8Tiles;
    case DeviceWeightType::kBf16:
    case DeviceWeightType::kFp8Rows:  // has none: DescribeTile
      break;
  }
  return kBf16Tiles;
}

// Also the index that DeviceGemmArgs::tile names.
enum class Size { kSmall, kMedium, kLarge };
inline constexpr int kNumSizes = 3;
constexpr Size ChooseSize(int64_t rows, int64_t n, int multiprocessors) {
  if (rows <= 16) return Size::kSmall;
  const int64_t large_blocks = (rows + 127) / 128 * ((n + 127) / 128);
  return rows > 64 && large_blocks >= multiprocessors ? Size::kLarge : Size::kMedium;
}

// DeviceOps::gemm_tile of the portable kernels.
constexpr DeviceGemmTile DescribeTile(DeviceWeightType type, int32_t index) {
  if (index < 0 || index >= kNumSizes || type == DeviceWeightType::kFp8Rows) return {};
  const Tiles& tiles = TilesOf(type);
  const Tile& tile = index == 0 ? tiles.small : index == 1 ? tiles.medium : tiles.large;
  return {tile.m, tile.n, tile.k, tile.stages, tile.shared_bytes()};
}

constexpr const Tile& ChooseTile(int64_t rows, int64_t n, int multiprocessors) {
  const Size size = ChooseSize(rows, n, multiprocessors);
  return size == Size::kSmall ? kSmallTile : size == Size::kMedium ? kMediumTile : kLargeTile;
}

}  // namespace tandem::kernels::gemm
