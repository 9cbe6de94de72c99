// The tile of a matrix product by its shape: plain host code. Every tile accumulates k in ascending
// steps of 16 with the same instruction and no split over K, so the choice changes no result bit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tandem::kernels::gemm {

// A block computes m × n outputs, k at a time; its warps split it warps_m × warps_n.
struct Tile {
  int m, n, k;
  int warps_m, warps_n;
  int stages;  // tiles of operands in shared memory: one computed on, the others on their way

  constexpr int threads() const { return warps_m * warps_n * 32; }
  constexpr size_t shared_bytes() const {
    return static_cast<size_t>(m + n) * static_cast<size_t>(k * stages) * 2;
  }
};

// Decoding: weights are read once, so many narrow blocks with much in flight.
inline constexpr Tile kSmallTile = {16, 32, 128, 1, 4, 4};
inline constexpr Tile kMediumTile = {64, 64, 64, 2, 2, 3};
// Prompts: operands are reused from shared memory.
inline constexpr Tile kLargeTile = {128, 128, 64, 2, 4, 3};

constexpr const Tile& ChooseTile(int64_t rows, int64_t n, int multiprocessors) {
  if (rows <= 16) return kSmallTile;
  const int64_t large_blocks = (rows + 127) / 128 * ((n + 127) / 128);
  return rows > 64 && large_blocks >= multiprocessors ? kLargeTile : kMediumTile;
}

}  // namespace tandem::kernels::gemm
