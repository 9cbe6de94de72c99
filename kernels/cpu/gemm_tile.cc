// y = x·wᵀ with bf16 x and w on tile registers (kernels/api/gemm.h, docs/kernels/gemm.md).
//
// Packed weights: panels of 32 output features, [ceil(N/32)][ceil(K/32)][2][16][16][2]: a step of
// 32 k is two tiles of sixteen features, whose rows hold pairs of k. Padding of N and K is zero. x
// stays row-major, and a row of a tile is 64 bytes of it. If the last step is incomplete, its part
// of x is first copied and padded with zeros, so that no load reads beyond x. Every element is one
// chain of steps from zero with k ascending, each step the same whatever rows share its tiles:
// neither rows, blocking nor threads change a bit. Bound by bytes of w up to about 100 rows, by
// tile products above.
#include "kernels/cpu/gemm_tile.h"

#include <algorithm>

#include "kernels/api/require.h"
#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/panel_rows.h"
#include "kernels/cpu/round_rows.h"
#include "kernels/cpu/tile_block.h"

namespace tandem::kernels::TANDEM_ISA {

#if defined(TANDEM_TILE_CLASS)

namespace {

constexpr int64_t kStepK = kTileRowBytes / 2;  // k of a step
constexpr int64_t kElementBytes = 2;

// A block by one panel, and its epilogue.
struct Tile {
  const char* x;     // first row
  int64_t x_stride;  // bytes
  int64_t rows;
  int64_t k;
  const char* w;  // the panel
  int64_t panel_bytes;
  TileAhead ahead;
  TilePlace place;

  TANDEM_INLINE MemoryRange XRange() const {
    return {x, x + (rows - 1) * x_stride + k * kElementBytes};
  }
};

// The last, incomplete step: x with zeros behind it.
template <bool kTwoTiles>
TANDEM_INLINE void RunTail(TileRegisters& tiles, const Tile& tile, int64_t begin) {
  alignas(64) char padded[kBlockRows * kTileRowBytes];
  const size_t bytes = static_cast<size_t>((tile.k - begin) * kElementBytes);
  for (int64_t r = 0; r < tile.rows; ++r) {
    char* row = padded + r * kTileRowBytes;
    __builtin_memset(row, 0, kTileRowBytes);
    __builtin_memcpy(row, tile.x + r * tile.x_stride + begin * kElementBytes, bytes);
  }
  const char* w = tile.w + begin / kStepK * kStepBytes;
  Step<Bf16Products, kTwoTiles>(tiles, {{padded, kTileRowBytes},
                                        {padded, padded + sizeof(padded)},
                                        w,
                                        {tile.w, tile.w + tile.panel_bytes}});
}

// The sums of the tile before, and where they belong. Its epilogue runs a few rows at each step of
// the tile that follows: products of tiles and vector instructions use different units.
class Epilogue {
 public:
  // REQUIRES: Finish was called since the last Begin.
  BlockSums* Begin(const TilePlace& place, int64_t rows) {
    place_ = place;
    first_ = place.row;
    end_ = place.row + rows;
    return &sums_;
  }
  TANDEM_INLINE void Advance() {
    if (end_ - place_.row >= kRowsAtOnce) Store<kRowsAtOnce>();
  }
  void Finish() {
    while (end_ - place_.row >= kRowsAtOnce) Store<kRowsAtOnce>();
    while (place_.row < end_) Store<1>();
  }

 private:
  // 16 steps of k, of which a product has at least as many but for small models, are 32 rows.
  static constexpr int64_t kRowsAtOnce = 2;

  template <int R>
  TANDEM_INLINE void Store() {
    V16 values[R][2];
    LoadSums<R>(sums_, place_.row - first_, values);
    StoreBf16Tile<R>(place_, values);
    place_.row += R;
  }

  BlockSums sums_;
  TilePlace place_ = {};
  int64_t first_ = 0, end_ = 0;
};

template <bool kTwoTiles>
TANDEM_INLINE void SumBlock(TileRegisters& tiles, const Tile& tile, Epilogue& epilogue) {
  ZeroSums<kTwoTiles>(tiles);
  const MemoryRange x_range = tile.XRange(), w_range = {tile.w, tile.w + tile.panel_bytes};
  const int64_t steps = tile.k / kStepK;
  const char* x = tile.x;
  const char* w = tile.w;
  for (int64_t step = 0; step < steps; ++step, x += kTileRowBytes, w += kStepBytes) {
    tile.ahead.Fetch(w - tile.w);
    Step<Bf16Products, kTwoTiles>(tiles, {{x, tile.x_stride}, x_range, w, w_range});
    epilogue.Advance();
  }
  if (steps * kStepK != tile.k) RunTail<kTwoTiles>(tiles, tile, steps * kStepK);
  epilogue.Finish();
  StoreSumsTo<kTwoTiles>(epilogue.Begin(tile.place, tile.rows), tiles);
}

void RunTile(TileRegisters& tiles, const Tile& tile, Epilogue& epilogue) {
  if (tile.rows > kTileRows) {
    SumBlock<true>(tiles, tile, epilogue);
  } else {
    SumBlock<false>(tiles, tile, epilogue);
  }
}

TANDEM_INLINE int64_t PaddedK(const MatrixShape& shape) {
  return CeilDiv(shape.k, kStepK) * kStepK;
}
TANDEM_INLINE int64_t PanelBytes(const MatrixShape& shape) {
  return CeilDiv(shape.k, kStepK) * kStepBytes;
}

// Blocks of rows of x that meet one panel after the other: as many as half of an L2 of 2 MB holds.
TANDEM_INLINE int64_t FewBlocks(int64_t x_stride) {
  constexpr int64_t kBytes = 1 << 20, kLeast = 4, kMost = 8;
  return std::clamp(kBytes / (kBlockRows * x_stride * kElementBytes), kLeast, kMost);
}

}  // namespace

size_t TilePackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(CeilDiv(shape.n, kPanel) * PanelBytes(shape));
}

void TilePackRows(const PackRowsArgs& args) {
  const int64_t k_count = args.shape.k;
  ForEachPanelRow(args, PanelBytes(args.shape), [&](int64_t i, int64_t lane, char* panel) {
    const float* row = PanelRow(args, i);
    char* feature = panel + lane / kLanes * kTileBytes + lane % kLanes * 4;
    for (int64_t k = 0; k < PaddedK(args.shape); ++k) {
      const Bf16 value = RoundToBf16(row != nullptr && k < k_count ? row[k] : 0.0f);
      char* pair = feature + k / kStepK * kStepBytes + k % kStepK / 2 * kTileRowBytes;
      __builtin_memcpy(pair + k % 2 * kElementBytes, &value, kElementBytes);
    }
  });
}

void TileGemm(const GemmArgs& args, const ParallelFor& parallel) {
  const MatrixShape& shape = args.w.shape;
  const uint16_t* x = args.x_bf16;
  int64_t x_stride = args.x_stride, k = shape.k;
  if (x == nullptr) {
    KERNEL_REQUIRE(args.scratch != nullptr);
    k = PaddedK(shape);
    // Rows 2 KiB apart would compete for the same cache sets.
    x_stride = k % 1024 == 0 ? k + kStepK : k;
    RoundRows(args, x_stride, parallel);
    x = static_cast<const uint16_t*>(args.scratch);
  } else {
    KERNEL_REQUIRE(shape.k % 2 == 0);
  }
  KERNEL_REQUIRE(args.gated_bf16 == nullptr || (shape.n % kPanel == 0 && args.bias == nullptr));
  const int64_t panel_bytes = PanelBytes(shape);
  const Plan plan = MakePlan(args, {.rows_max = kBlockRows,
                                    .panel_bytes = panel_bytes,
                                    .few_blocks = FewBlocks(x_stride),
                                    .task_blocks = 4});
  const char* weights = static_cast<const char*>(args.w.data);
  parallel(plan.tasks(), [&](int64_t task, int) {
    BlockTiles block_tiles;
    Epilogue epilogue;
    RunTask(plan, task, [&](int64_t block, int64_t panel) {
      const int64_t row = plan.Begin(block);
      const char* w = weights + panel * panel_bytes;
      block_tiles.SetRows(plan.Rows(block));
      RunTile(block_tiles.tiles,
              {reinterpret_cast<const char*>(x + row * x_stride),
               x_stride * kElementBytes,
               plan.Rows(block),
               k,
               w,
               panel_bytes,
               TileAhead::Of(args, plan, w, block),
               {&args, row, panel * kPanel}},
              epilogue);
    });
    epilogue.Finish();
  });
}

#endif

}  // namespace tandem::kernels::TANDEM_ISA
