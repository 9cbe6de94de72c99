// The parts that products of all types of weights share: the pipeline over k, matrix loads of a
// warp's operands, and the stores of the accumulators. Thread safety: device functions, called by
// all threads of a block together.
#pragma once

#include "kernels/api/device_gemm.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/gemm_config.h"
#include "kernels/cuda/ops/gemm_epilogue.h"
#include "kernels/cuda/simt/launch.h"
#include "kernels/cuda/simt/swizzle.h"

namespace tandem::kernels::TANDEM_SIMT {

// A tile's constants, and one warp's part of it.
template <gemm::Tile kTile>
struct TileOf {
  static constexpr int kThreads = kTile.threads();
  static constexpr int kM = kTile.m, kN = kTile.n, kK = kTile.k;
  static constexpr int kStages = kTile.stages;
  static constexpr int kStageBytes = kTile.stage_bytes();
  static constexpr int kWarpM = kM / kTile.warps_m, kWarpN = kN / kTile.warps_n;
  static constexpr int kTilesM = kWarpM / 16, kTilesN = kWarpN / 8;

  // Where the warp's part lies in the block's tile.
  TANDEM_KERNEL int FirstM() { return WarpIndex() / kTile.warps_n * kWarpM; }
  TANDEM_KERNEL int FirstN() { return WarpIndex() % kTile.warps_n * kWarpN; }

  // Calls load(i, stage) for each of `tiles` tiles of k, which starts copies into a stage of shared
  // memory, and compute(i, stage) in order once they have landed.
  template <typename Load, typename Compute>
  TANDEM_KERNEL void Pipeline(int tiles, const Load& load, const Compute& compute) {
    const auto stage = [](int i) { return SharedMemory() + i % kStages * kStageBytes; };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) {
      if (i < tiles) load(i, stage(i));
      CommitCopies();
    }
    for (int i = 0; i < tiles; ++i) {
      WaitCopies<kStages - 2>();
      // All threads' copies of tile i have landed, and all threads are done with tile i − 1, whose
      // stage is the next to be filled.
      SyncThreads();
      if (i + kStages - 1 < tiles) load(i + kStages - 1, stage(i + kStages - 1));
      CommitCopies();
      compute(i, stage(i));
    }
    WaitCopies<0>();
  }

  // Starts copies of kRows × kChunks chunks: chunk(row, c) is a chunk's source, or nullptr for
  // zeros; place(row, c) is its offset from `to`. `any` is any valid address, which copies of zeros
  // name.
  template <int kRows, int kChunks, typename Chunk, typename Place>
  TANDEM_KERNEL void CopyTile(char* to, const void* any, const Chunk& chunk, const Place& place) {
    for (int i = ThreadIndex(); i < kRows * kChunks; i += kThreads) {
      const int row = i / kChunks, c = i % kChunks;
      const void* from = chunk(row, c);
      CopyAsync16(to + place(row, c), from == nullptr ? any : from, from != nullptr);
    }
  }

  // Operand a of the warp's rows from 16 · i, for the two chunks from `chunk`: 32 bytes of k.
  template <int kChunks>
  TANDEM_KERNEL void LoadA(const char* x, int i, int chunk, uint32_t a[4]) {
    // Matrices: rows 0-7 and 8-15 of the first chunk, then of the second.
    const int row = FirstM() + i * 16 + LaneIndex() % 16;
    LoadMatrix4(a, x + SwizzledOffset<kChunks>(row, chunk + LaneIndex() / 16));
  }

  // Stores the sums of columns n and n + 1, `factors(n)` times each, or their gate.
  template <typename Factors>
  TANDEM_KERNEL void Store(const DeviceGemmArgs& p, const float acc[kTilesM][kTilesN][4],
                           const Factors& factors) {
    if (p.gated == nullptr) {
      StoreSums(p, acc, factors);
    } else {
      StoreGate(p, acc, factors);
    }
  }
  // Row and column of y of the first of the lane's sums.
  TANDEM_KERNEL int FirstRow() { return BlockY() * kM + FirstM() + LaneIndex() / 4; }
  TANDEM_KERNEL int FirstColumn() { return BlockX() * kN + FirstN() + LaneIndex() % 4 * 2; }

  template <typename Factors>
  TANDEM_KERNEL void StoreSums(const DeviceGemmArgs& p, const float acc[kTilesM][kTilesN][4],
                               const Factors& factors) {
    const int first_m = FirstRow(), first_n = FirstColumn();
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
      const FloatPair factor = factors(first_n + j * 8);
      FloatPair before[kTilesM][2] = {};
      if (p.add_to_y) {
#pragma unroll
        for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            before[i][half] = LoadPair(p, first_m + i * 16 + half * 8, first_n + j * 8);
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          StorePair(p, first_m + i * 16 + half * 8, first_n + j * 8,
                    Scaled(acc[i][j], half, factor), before[i][half]);
        }
      }
    }
  }

  TANDEM_KERNEL FloatPair Scaled(const float acc[4], int half, const FloatPair& factor) {
    return {Mul(acc[half * 2], factor.first), Mul(acc[half * 2 + 1], factor.second)};
  }

  // Tiles of 32 columns a warp: the four lanes of a row exchange the gate's values, and each stores
  // four neighbours, so that a row's sixteen are a whole sector of memory. Narrower ones store each
  // value by itself.
  template <typename Factors>
  TANDEM_KERNEL void StoreGate(const DeviceGemmArgs& p, const float acc[kTilesM][kTilesN][4],
                               const Factors& factors) {
    constexpr int kTogether = kTilesN % 4 == 0 ? 4 : 1;
    const int64_t row_size = p.n / 2;
#pragma unroll
    for (int j = 0; j < kTilesN; j += kTogether) {
      const int n = FirstColumn() + j * 8;
      FloatPair factor[kTogether];
#pragma unroll
      for (int g = 0; g < kTogether; ++g) factor[g] = factors(n + g * 8);
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int m = FirstRow() + i * 16 + half * 8;
          uint32_t value[kTogether];
#pragma unroll
          for (int g = 0; g < kTogether; ++g) {
            value[g] = GateBits(p, n + g * 8, Scaled(acc[i][j + g], half, factor[g]));
          }
          if constexpr (kTogether == 4) {
            const FourBf16 four = ExchangeFours(value);
            const int64_t column = (n - LaneIndex() % 4 * 2) / 2 + LaneIndex() % 4 * 4;
            if (m >= p.rows || column >= row_size) continue;
            *reinterpret_cast<FourBf16*>(p.gated + m * row_size + column) = four;
          } else if (m < p.rows && n < p.n) {
            p.gated[m * row_size + n / 2] = static_cast<Bf16Bits>(value[0]);
          }
        }
      }
    }
  }

  // Two scales of rows of w, from column n of y; beyond the last, 0.
  TANDEM_KERNEL FloatPair RowScales(const DeviceGemmArgs& p, int n) {
    const float* scales = static_cast<const float*>(p.scales) + n;
    return {n < p.n ? scales[0] : 0.0f, n + 1 < p.n ? scales[1] : 0.0f};
  }
};

template <typename Kernel, gemm::Tile kTile>
void LaunchGemm(const DeviceGemmArgs& args, DeviceStream& stream) {
  Launch<Kernel>({.x = (args.n + kTile.n - 1) / kTile.n,
                  .y = (args.rows + kTile.m - 1) / kTile.m,
                  .threads = kTile.threads(),
                  .shared_bytes = kTile.shared_bytes()},
                 args, stream);
}

// Launches Kernel<tile> for the tile of `kTiles` that the call names, or that fits it.
template <template <gemm::Tile> typename Kernel, gemm::Tiles kTiles>
void LaunchOneOf(const DeviceGemmArgs& args, DeviceStream& stream) {
  KERNEL_REQUIRE(args.tile < gemm::kNumSizes);
  switch (args.tile >= 0 ? static_cast<gemm::Size>(args.tile)
                         : gemm::ChooseSize(args.rows, args.n, args.multiprocessors)) {
    case gemm::Size::kSmall:
      return LaunchGemm<Kernel<kTiles.small>, kTiles.small>(args, stream);
    case gemm::Size::kMedium:
      return LaunchGemm<Kernel<kTiles.medium>, kTiles.medium>(args, stream);
    case gemm::Size::kLarge:
      return LaunchGemm<Kernel<kTiles.large>, kTiles.large>(args, stream);
  }
}

}  // namespace tandem::kernels::TANDEM_SIMT
