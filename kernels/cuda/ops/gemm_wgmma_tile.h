// The parts that Hopper's matrix products share, whatever their operands' type: the ring of stages
// that a copying warpgroup fills, the walk over tiles of y, and the stores of the accumulators.
//
// The operands are swapped: a warpgroup multiplies 64 rows of w (A) by 8 to 256 rows of x (B). So a
// few rows of x do not cost as much as 64, and one form of the instruction's sum serves every
// number of rows (docs/adr/0017).
//
// Grid: at most one block for each multiprocessor, each walking tiles of y in the order of
// PlaceOfTile. Blocks of a cluster walk neighbours in n, whose rows of x are the same: each block
// brings its part of them to all. In each block one warpgroup only copies: bulk tensor copies bring
// panels of w and x into `stages` stages, zeros beyond the matrices, and it runs ahead into the
// next tile while the consumers store theirs. Barriers of stage s: full[s] ends when its bytes have
// arrived, empty[s] when each consumer warp of the cluster has finished with it, so that no block
// copies into another one's stage too early. Shared memory: stage s holds w's panels [k / columns
// of a panel][n], then x's [..][rows]; behind all stages lie the scales of x that each stage brings
// along, [groups][rows], for types that have them, each consumer's strip of a gate's values
// [rows][32], and the barriers. Thread safety: launchers use the stream's thread; device functions
// run in threads of a block.
#pragma once

#include "kernels/api/device_gemm.h"
#include "kernels/api/require.h"
#include "kernels/cuda/ops/gemm_epilogue.h"
#include "kernels/cuda/ops/gemm_wgmma_config.h"
#include "kernels/cuda/ops/ring_cursor.h"
#include "kernels/cuda/simt/hopper.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {

// The copy engine's descriptions of a product's operands, and the call.
struct WgmmaParams {
  PanelMap w, x;
  StripMap gated;  // of p.gated, where there is one
  DeviceGemmArgs args;
  int columns;  // of y, that each block computes at a time
};
struct ScaledWgmmaParams : WgmmaParams {
  RunMap scales;  // of x, [groups][ScaleStride(rows)]
};

template <gemm::WgmmaTile kTile>
StripMap GateStrips(const DeviceGemmArgs& args, DeviceStream& stream) {
  if (args.gated == nullptr) return {};
  return DescribeStrips({args.gated, args.rows, args.n / 2, kTile.rows}, stream);
}

template <gemm::WgmmaTile kTile>
int ColumnsOf(const DeviceGemmArgs& args) {
  if (args.gated != nullptr) return kTile.n;
  return gemm::ColumnsOfBlock(kTile, args.rows, args.n, args.multiprocessors);
}

template <gemm::WgmmaTile kTile>
struct WgmmaRing {
  static_assert(kTile.shared_bytes() <= size_t{227} << 10);
  static constexpr int kThreads = kTile.threads();
  static constexpr int kBlocksPerMultiprocessor = 1;
  static constexpr bool kStartsEarly = true;
  static constexpr int kPanelColumns = kPanelRowBytes / kTile.element_bytes();
  static constexpr int kSteps = kPanelRowBytes / kStepBytes;  // instructions for a panel's row
  static constexpr int kSums = kTile.rows / 2;                // sums that a thread holds

  using Cursor = RingCursor<kTile.stages>;
  static constexpr int kBlocks = kTile.cluster;
  static constexpr int kRowsOfBlock = kTile.rows / kBlocks;  // of x, that each block brings
  static_assert(PanelBytes(kRowsOfBlock) % kPanelAlignment == 0 || kBlocks == 1);

  // Tiles of several consumers always have all their columns.
  TANDEM_KERNEL int Columns(const WgmmaParams& p) {
    return kTile.consumers() == 1 ? p.columns : kTile.n;
  }
  TANDEM_KERNEL gemm::WgmmaTiling TilingOf(const WgmmaParams& p) {
    return gemm::TileProduct(kTile, Columns(p), p.args.rows, p.args.n, p.args.k);
  }
  // The tiles of y that this block computes are those of its cluster's walk, FirstTile + i · Step.
  TANDEM_KERNEL int FirstTile() { return BlockX() / kBlocks; }
  TANDEM_KERNEL int Step() { return GridX() / kBlocks; }
  TANDEM_KERNEL gemm::TilePlace PlaceAt(int tile, const gemm::WgmmaTiling& tiling) {
    gemm::TilePlace place = gemm::PlaceOfTile(tile, tiling.row_tiles, tiling.clusters_in_n);
    if constexpr (kBlocks > 1) place.n_tile = place.n_tile * kBlocks + ClusterRank();
    return place;
  }
  TANDEM_KERNEL char* StageOf(int stage) { return PanelMemory() + stage * kTile.operand_bytes(); }
  // Scales of x's rows in one group of k of a stage.
  TANDEM_KERNEL float* ScalesOf(int stage, int group) {
    const int run = stage * kTile.groups() + group;
    return reinterpret_cast<float*>(PanelMemory() + kTile.scales_offset() +
                                    run * kTile.run_stride());
  }
  TANDEM_KERNEL char* StripOf(int consumer) {
    return PanelMemory() + kTile.strips_offset() + consumer * kTile.strip_bytes();
  }
  TANDEM_KERNEL Barrier* FullBarrier(int stage) {
    return reinterpret_cast<Barrier*>(PanelMemory() + kTile.barriers_offset()) + stage;
  }
  TANDEM_KERNEL Barrier* EmptyBarrier(int stage) { return FullBarrier(kTile.stages + stage); }

  // Starts to fill a stage with tile `i` of k of the operands of one tile of y: with w, then with x
  // and its scales.
  template <typename Params>
  TANDEM_KERNEL void CopyWeights(const Params& p, int stage, const gemm::TilePlace& at, int i) {
    const int columns = Columns(p);
    const int absent = (kTile.n - columns) * kTile.k * kTile.element_bytes();
    ArriveExpecting(FullBarrier(stage), kTile.stage_bytes() - absent);
    char* w = StageOf(stage);
#pragma unroll
    for (int panel = 0; panel < kTile.panels(); ++panel) {
      CopyPanel(w + panel * PanelBytes(kTile.n), p.w, at.n_tile * columns,
                i * kTile.k + panel * kPanelColumns, FullBarrier(stage));
    }
  }
  template <typename Params>
  TANDEM_KERNEL void CopyRows(const Params& p, int stage, const gemm::TilePlace& at, int i) {
    Barrier* full = FullBarrier(stage);
    char* x = StageOf(stage) + kTile.panels() * PanelBytes(kTile.n);
#pragma unroll
    for (int panel = 0; panel < kTile.panels(); ++panel) {
      const int row = at.row_tile * kTile.rows, column = i * kTile.k + panel * kPanelColumns;
      char* to = x + panel * PanelBytes(kTile.rows);
      if constexpr (kBlocks > 1) {
        const int part = ClusterRank();
        CopyPanelToBlocks((1u << kBlocks) - 1, to + part * PanelBytes(kRowsOfBlock), p.x,
                          {row + part * kRowsOfBlock, column}, full);
      } else {
        CopyPanel(to, p.x, row, column, full);
      }
    }
    if constexpr (kTile.groups() > 0) {
#pragma unroll
      for (int group = 0; group < kTile.groups(); ++group) {
        CopyRun(ScalesOf(stage, group), p.scales, i * kTile.groups() + group,
                at.row_tile * kTile.rows, full);
      }
    }
  }

  // Run by one thread: fills stage after stage with the operands of this block's tiles. No kernel
  // writes weights, so those of the first stages are on their way before the predecessor has ended.
  template <typename Params>
  TANDEM_KERNEL void CopyTiles(const Params& p) {
    const gemm::WgmmaTiling tiling = TilingOf(p);
    PrefetchMap(p.w);
    PrefetchMap(p.x);
    if constexpr (kTile.groups() > 0) PrefetchMap(p.scales);
    const gemm::TilePlace first = PlaceAt(FirstTile(), tiling);
    const int early = tiling.k_tiles < kTile.stages ? tiling.k_tiles : kTile.stages;
    for (int i = 0; i < early; ++i) CopyWeights(p, i, first, i);
    WaitForPredecessor();
    Cursor cursor;
    for (int t = FirstTile(); t < tiling.clusters(); t += Step()) {
      const gemm::TilePlace at = PlaceAt(t, tiling);
      for (int i = 0; i < tiling.k_tiles; ++i) {
        if (t != FirstTile() || i >= early) {
          // In the first round, the phase before the first counts as ended.
          WaitPhase(EmptyBarrier(cursor.stage), cursor.parity ^ 1);
          CopyWeights(p, cursor.stage, at, i);
        }
        CopyRows(p, cursor.stage, at, i);
        cursor.Next();
      }
    }
  }

  // Reports to all blocks of the cluster that a warp is done with a stage. REQUIRES: a SyncWarp
  // follows the lanes' own reads of the stage, if there are any.
  TANDEM_KERNEL void Release(int stage) {
    if constexpr (kBlocks > 1) {
      if (LaneIndex() < kBlocks) ArriveIn(LaneIndex(), EmptyBarrier(stage));
    } else {
      if (LaneIndex() == 0) Arrive(EmptyBarrier(stage));
    }
  }

  // Calls store(y, sum) for each of a thread's sums that lies in this block's part of y. They are
  // sums of yᵀ: of every eight rows of y a thread has two, in columns eight apart. Eight lanes have
  // neighbouring columns of a row, 32 bytes. Where kAll, all sums lie there, and no branch stands
  // between two stores.
  template <bool kAll, typename Store>
  TANDEM_KERNEL void ForEachSum(const DeviceGemmArgs& p, const float (&sums)[kSums], int row, int n,
                                int end_n, const Store& store) {
    float* to = p.y + int64_t{row} * p.n + n;
    const float bias[2] = {BiasOf(p, n), BiasOf(p, n + 8)};
#pragma unroll
    for (int i = 0; i < kSums; i += 4) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int half = j / 2, next = j % 2;
        if (!kAll && (row + i * 2 + next >= p.rows || n + half * 8 >= end_n)) continue;
        store(to + (next == 0 ? 0 : p.n) + half * 8, Add(sums[i + j], bias[half]));
      }
      to += int64_t{8} * p.n;
    }
  }

  // Stores the sums of a warpgroup's columns, 64 or the first ones of them that lie before `end_n`.
  // Where they are added to what y holds, the memory adds them, so that no thread waits for y.
  TANDEM_KERNEL void StoreSums(const DeviceGemmArgs& p, const float (&sums)[kSums], int first_row,
                               int first_n, int end_n) {
    const int row = first_row + LaneIndex() % 4 * 2;
    const int n = first_n + WarpIndex() % kWarpgroupWarps * 16 + LaneIndex() / 4;
    const int end = end_n < p.n ? end_n : p.n;
    const auto add = [](float* y, float sum) { AddInMemory(y, sum); };
    const auto put = [](float* y, float sum) { *y = sum; };
    if (first_row + kTile.rows <= p.rows && first_n + 64 <= end) {
      if (p.add_to_y) return ForEachSum<true>(p, sums, row, n, end, add);
      return ForEachSum<true>(p, sums, row, n, end, put);
    }
    if (p.add_to_y) return ForEachSum<false>(p, sums, row, n, end, add);
    ForEachSum<false>(p, sums, row, n, end, put);
  }

  // Stores the gate of a warpgroup's 64 columns: the threads gather it in shared memory, and the
  // copy engine writes two whole sectors of each row while the warpgroup goes on.
  TANDEM_KERNEL void StoreGate(const WgmmaParams& p, const float (&sums)[kSums],
                               const gemm::TilePlace& at, int consumer) {
    static_assert(kStripRowBytes == 64);
    const int lane = LaneIndex();
    const int odd = lane / 4 % 2;
    const int column = WarpIndex() % kWarpgroupWarps * 16 + lane / 8 * 2;
    const int first_n = at.n_tile * kTile.n + consumer * 64;
    char* strip = StripOf(consumer);
    const bool stores = ThreadIndex() % kWarpgroupSize == 0;
    if (stores) WaitForStores();  // of the tile before
    SyncWarpgroup<kTile.consumers()>();
#pragma unroll
    for (int i = 0; i < kSums; i += 2) {
      const float other = ShuffleXor(odd != 0 ? sums[i] : sums[i + 1], 4);
      const FloatPair sum = {odd != 0 ? other : sums[i], odd != 0 ? sums[i + 1] : other};
      const int row = i / 4 * 8 + lane % 4 * 2 + odd, n = column + i / 2 % 2 * 8;
      *reinterpret_cast<Bf16Bits*>(strip + row * kStripRowBytes + n) =
          static_cast<Bf16Bits>(GateBits(p.args, first_n + n, sum));
    }
    FenceProxyAsync();
    SyncWarpgroup<kTile.consumers()>();
    if (!stores) return;
    StoreStrip(p.gated, strip, at.row_tile * kTile.rows, first_n / 2);
    CommitStores();
  }
  // The sums of the tile of y at `at`, columns from 64 · consumer.
  TANDEM_KERNEL void Store(const WgmmaParams& p, const float (&sums)[kSums],
                           const gemm::TilePlace& at, int consumer) {
    if (p.args.gated == nullptr) {
      const int first_n = at.n_tile * Columns(p);
      StoreSums(p.args, sums, at.row_tile * kTile.rows, first_n + consumer * 64,
                first_n + Columns(p));
    } else {
      StoreGate(p, sums, at, consumer);
    }
  }

  // The kernel: multiply(consumer) in the warpgroups that multiply.
  template <typename Params, typename Multiply>
  TANDEM_KERNEL void RunRoles(const Params& p, const Multiply& multiply) {
    if constexpr (!kCompilesForHopper) {
      Trap();
    } else {
      if (ThreadIndex() == 0) {
        for (int stage = 0; stage < kTile.stages; ++stage) {
          InitBarrier(FullBarrier(stage), 1);
          InitBarrier(EmptyBarrier(stage), kBlocks * kTile.consumers() * kWarpgroupWarps);
        }
        FenceBarrierInit();
      }
      if constexpr (kBlocks > 1) {
        SyncCluster();  // no other block arrives or copies here before the barriers are ready
      } else {
        SyncThreads();
      }
      const int warpgroup = WarpgroupIndex();
      if (warpgroup == kTile.consumers()) {
        GiveRegisters<kTile.copier_registers()>();
        if (WarpIndex() == kTile.consumers() * kWarpgroupWarps && ElectOne()) CopyTiles(p);
      } else {
        TakeRegisters<kTile.consumer_registers()>();
        WaitForPredecessor();  // its results may be what the sums are added to
        multiply(warpgroup);
        WaitForStores();
      }
      // The last stages are released in all blocks, so none may end before the others are done.
      if constexpr (kBlocks > 1) SyncCluster();
    }
  }
};

template <typename Kernel, gemm::WgmmaTile kTile>
void LaunchRing(const typename Kernel::Params& params, DeviceStream& stream) {
  const gemm::WgmmaTiling tiling =
      gemm::TileProduct(kTile, params.columns, params.args.rows, params.args.n, params.args.k);
  const int64_t room = params.args.multiprocessors / kTile.cluster;
  const int64_t most = room > 0 ? room : 1;
  const int64_t clusters = tiling.clusters() < most ? tiling.clusters() : most;
  Launch<Kernel>({.x = static_cast<int>(clusters) * kTile.cluster,
                  .threads = kTile.threads(),
                  .shared_bytes = kTile.shared_bytes(),
                  .cluster = kTile.cluster},
                 params, stream);
}

// Launches Kernel<index>, `of` naming which index of kCount.
template <template <int> typename Kernel, int kCount, int kIndex = 0>
void LaunchChosenRing(int of, const DeviceGemmArgs& args, DeviceStream& stream) {
  if constexpr (kIndex < kCount) {
    if (of != kIndex) return LaunchChosenRing<Kernel, kCount, kIndex + 1>(of, args, stream);
    using Chosen = Kernel<kIndex>;
    LaunchRing<Chosen, Chosen::kTile>(Chosen::ParamsOf(args, stream), stream);
  }
}

}  // namespace tandem::kernels::TANDEM_SIMT
