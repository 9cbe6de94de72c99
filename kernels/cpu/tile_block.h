// How products run on tile registers: a block of up to 32 rows of activations by a panel of 32
// features, four accumulators, in steps of 64 bytes of k.
//
//          tile 6   tile 7    16 features each: pairs (quads) of k in rows
//   tile 4 tile 0   tile 1    rows [0, 16)
//   tile 5 tile 2   tile 3    rows [16, 32)
// A step reads four tiles for four products. The panel passes by once for a block, while the
// block's rows meet every panel: so only they should stay in the L1 cache. A block of up to sixteen
// rows leaves 2, 3 and 5 out. Packed weights: panels of [steps][2] tiles, so that a panel is one
// stream of memory. Thread safety: one worker, which holds the tiles (tile_registers.h).
#pragma once

#include "kernels/cpu/gemm_plan.h"
#include "kernels/cpu/tile_registers.h"

#if defined(TANDEM_TILE_CLASS)

namespace tandem::kernels::TANDEM_ISA {

inline constexpr int64_t kBlockRows = 2 * kTileRows;
inline constexpr int64_t kStepBytes = 2 * kTileBytes;  // of a panel
static_assert(kPanel * 4 == 2 * kTileRowBytes);

// For a block of `rows` rows.
TANDEM_INLINE TileConfig ConfigOf(int64_t rows) {
  const uint8_t first = static_cast<uint8_t>(Least(rows, kTileRows));
  const uint8_t second = static_cast<uint8_t>(rows - first);
  const uint8_t tile_rows[kTiles] = {first, first, second, second, first, second, 16, 16};
  TileConfig config;
  for (int t = 0; t < kTiles; ++t) {
    config.rows[t] = tile_rows[t];
    config.row_bytes[t] = tile_rows[t] == 0 ? 0 : kTileRowBytes;
  }
  return config;
}

// A thread's tiles, configured for the current block.
struct BlockTiles {
  TileRegisters tiles;
  int64_t rows = 0;

  TANDEM_INLINE void SetRows(int64_t wanted) {
    if (wanted != rows) tiles.Configure(ConfigOf(wanted));
    rows = wanted;
  }
};

// Sums of a block: 32 rows by 32 features of four bytes.
struct alignas(64) BlockSums {
  static constexpr int64_t kRowBytes = 2 * kTileRowBytes;
  char bytes[kBlockRows * kRowBytes];
};

template <bool kTwoTiles>
TANDEM_INLINE void ZeroSums(TileRegisters& tiles) {
  tiles.Zero<0>();
  tiles.Zero<1>();
  if constexpr (kTwoTiles) {
    tiles.Zero<2>();
    tiles.Zero<3>();
  }
}

template <bool kTwoTiles>
TANDEM_INLINE void StoreSumsTo(BlockSums* sums, TileRegisters& tiles) {
  constexpr int64_t kStride = BlockSums::kRowBytes;
  char* first = sums->bytes;
  char* second = first + kTileRows * kStride;
  const MemoryRange all = {first, first + sizeof(sums->bytes)};
  tiles.Store<0>({first, kStride}, all);
  tiles.Store<1>({first + kTileRowBytes, kStride}, all);
  if constexpr (kTwoTiles) {
    tiles.Store<2>({second, kStride}, all);
    tiles.Store<3>({second + kTileRowBytes, kStride}, all);
  }
}

struct Bf16Products {
  template <int kSum, int kRows, int kWeights>
  TANDEM_INLINE static void Run(TileRegisters& tiles) {
    tiles.DotBf16<kSum, kRows, kWeights>();
  }
};
struct Int8Products {
  template <int kSum, int kRows, int kWeights>
  TANDEM_INLINE static void Run(TileRegisters& tiles) {
    tiles.DotInt8<kSum, kRows, kWeights>();
  }
};

// The operands of one step.
struct StepOperands {
  TileMemory<const char> x;
  MemoryRange x_range;
  const char* w;
  MemoryRange w_range;
};

template <typename Products, bool kTwoTiles>
TANDEM_INLINE void Step(TileRegisters& tiles, const StepOperands& in) {
  tiles.LoadOnce<6>({in.w, kTileRowBytes}, in.w_range);
  tiles.Load<4>(in.x, in.x_range);
  Products::template Run<0, 4, 6>(tiles);
  tiles.LoadOnce<7>({in.w + kTileBytes, kTileRowBytes}, in.w_range);
  Products::template Run<1, 4, 7>(tiles);
  if constexpr (kTwoTiles) {
    tiles.Load<5>({in.x.first + kTileRows * in.x.stride, in.x.stride}, in.x_range);
    Products::template Run<2, 5, 6>(tiles);
    Products::template Run<3, 5, 7>(tiles);
  }
}

// What a block fetches into L2 while it passes a panel. With several blocks of rows it is the
// block's share of each step of the panel that comes in the place of this one when all blocks have
// passed. With one block it is what lies a little further in the panels.
struct TileAhead {
  const char* first;  // for the panel's first step
  int64_t lines;      // 64 bytes each, of every step

  TANDEM_INLINE static TileAhead Of(const GemmArgs& args, const Plan& plan, const char* w,
                                    int64_t block) {
    constexpr int64_t kLines = kStepBytes / kTileRowBytes;
    if (plan.row_blocks == 1) return {w + kPrefetchBytes, kLines};
    const char* end = static_cast<const char*>(args.w.data) + plan.panels * plan.panel_bytes;
    const char* next = w + plan.task_panels * plan.panel_bytes;
    const int64_t lines = CeilDiv(kLines, plan.row_blocks);
    if (next >= end) return {w, 0};
    return {next + Least(block * lines, kLines - lines) * kTileRowBytes, lines};
  }
  // After `read` bytes of the panel.
  TANDEM_INLINE void Fetch(int64_t read) const {
    for (int64_t i = 0; i < lines; ++i) _mm_prefetch(first + read + i * kTileRowBytes, _MM_HINT_T1);
  }
};

// sums[r] = row r of a block's sums, from row `row` on.
template <int R>
TANDEM_INLINE void LoadSums(const BlockSums& from, int64_t row, V16 (&sums)[R][2]) {
  const float* first = reinterpret_cast<const float*>(from.bytes) + row * kPanel;
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    sums[r][0] = Load(first + r * kPanel);
    sums[r][1] = Load(first + r * kPanel + kLanes);
  }
}

}  // namespace tandem::kernels::TANDEM_ISA

#endif
