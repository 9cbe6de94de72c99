// Implements TilePeakRate and TileInt8PeakRate (kernels/cpu/gemm_tile.h): the most multiply-adds a
// second that one thread does on tile registers, with products into four accumulators alternately,
// as a block does them, without loads.
#include <time.h>

#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/tile_block.h"

namespace tandem::kernels::TANDEM_ISA {

#if defined(TANDEM_TILE_CLASS)

namespace {

constexpr int kSteps = 300;
constexpr int kTrials = 9;
constexpr double kDotsOfTiles = 16 * 16 * 16;  // dwords of k by rows by features

double Seconds() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// Products of two tiles a second.
template <typename Products>
double TileProductsPerSecond() {
  BlockTiles block;
  block.SetRows(kBlockRows);
  double best = 1e9;
  for (int trial = 0; trial < kTrials; ++trial) {
    const double start = Seconds();
    for (int step = 0; step < kSteps; ++step) {
      Products::template Run<0, 4, 6>(block.tiles);
      Products::template Run<1, 4, 7>(block.tiles);
      Products::template Run<2, 5, 6>(block.tiles);
      Products::template Run<3, 5, 7>(block.tiles);
    }
    const double time = Seconds() - start;
    best = time < best ? time : best;
  }
  return 4 * kSteps / best;
}

}  // namespace

double TilePeakRate() { return 2 * kDotsOfTiles * TileProductsPerSecond<Bf16Products>(); }
double TileInt8PeakRate() { return 4 * kDotsOfTiles * TileProductsPerSecond<Int8Products>(); }

#endif

}  // namespace tandem::kernels::TANDEM_ISA
