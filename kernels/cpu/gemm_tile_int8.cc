// y = x·wᵀ with int8 w and x on tile registers (kernels/cpu/gemm_tile.h): the definition and the
// bits of gemm_int8.cc.
//
//   y[m, n] = sw[n]·Σ_g sx[m, g]·float(Σ_{k in g} qx·qw)     one FMA chain, groups g ascending
// A group of 64 k is one step, whose exact sums go to memory and are scaled there: four groups at a
// time, so that the fp32 sums are read and written once for four.
// Packed weights: panels of 32 output features, [ceil(N/32)] of {[ceil(K/64)][2][16][16][4] bytes,
// sw[32] fp32}: rows of tiles hold quads of k. Padding of N and K is zero.
// Bound by bytes of w up to about 60 rows, by the scaling of sums above.
#include "kernels/api/require.h"
#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/int8_rows.h"
#include "kernels/cpu/panel_rows.h"
#include "kernels/cpu/tile_block.h"

namespace tandem::kernels::TANDEM_ISA {

#if defined(TANDEM_TILE_CLASS)

namespace {

constexpr int64_t kGroup = kTileRowBytes;  // k of a step, which share a scale of x
constexpr int64_t kTrailerBytes = kPanel * 4;
constexpr int64_t kGroupsAtOnce = 4;

TANDEM_INLINE int64_t PanelBytes(const MatrixShape& shape) {
  return CeilDiv(shape.k, kGroup) * kStepBytes + kTrailerBytes;
}

struct GroupScale {
  float scale;

  TANDEM_INLINE static GroupScale From(const RoundedGroup& group) { return {group.scale}; }
};

// A block by one panel, and its epilogue.
struct Tile {
  const char* x;  // first row
  int64_t x_stride;
  int64_t rows;
  const GroupScale* x_scales;  // first row
  int64_t groups;
  const char* w;  // the panel
  TileAhead ahead;
  TilePlace place;
};

// The exact sums of groups [first, first + count).
template <bool kTwoTiles>
TANDEM_INLINE void SumGroups(TileRegisters& tiles, const Tile& tile, int64_t first, int64_t count,
                             BlockSums* exact) {
  const MemoryRange x_range = {tile.x,
                               tile.x + (tile.rows - 1) * tile.x_stride + tile.groups * kGroup};
  const MemoryRange w_range = {tile.w, tile.w + tile.groups * kStepBytes};
  for (int64_t g = 0; g < count; ++g) {
    const char* w = tile.w + (first + g) * kStepBytes;
    tile.ahead.Fetch(w - tile.w);
    ZeroSums<kTwoTiles>(tiles);
    Step<Int8Products, kTwoTiles>(
        tiles, {{tile.x + (first + g) * kGroup, tile.x_stride}, x_range, w, w_range});
    StoreSumsTo<kTwoTiles>(&exact[g], tiles);
  }
}

// Adds them, scaled, to sums.
TANDEM_INLINE void AddScaled(const Tile& tile, int64_t first, int64_t count, const BlockSums* exact,
                             float* sums) {
  for (int64_t r = 0; r < tile.rows; ++r) {
    const GroupScale* scales = tile.x_scales + r * tile.groups + first;
    float* row = sums + r * kPanel;
    V16 low = Load(row), high = Load(row + kLanes);
    for (int64_t g = 0; g < count; ++g) {
      const uint32_t* whole = reinterpret_cast<const uint32_t*>(exact[g].bytes) + r * kPanel;
      const V16 scale = Set1(scales[g].scale);
      low = Fma(FromInt(LoadU(whole)), scale, low);
      high = Fma(FromInt(LoadU(whole + kLanes)), scale, high);
    }
    Store(row, low);
    Store(row + kLanes, high);
  }
}

template <int R>
TANDEM_INLINE void StoreRows(const Tile& tile, const BlockSums& sums, int64_t row) {
  const float* w_scales = reinterpret_cast<const float*>(tile.w + tile.groups * kStepBytes);
  V16 values[R][2];
  LoadSums<R>(sums, row, values);
#pragma GCC unroll 4
  for (int r = 0; r < R; ++r) {
    values[r][0] = Mul(values[r][0], Load(w_scales));
    values[r][1] = Mul(values[r][1], Load(w_scales + kLanes));
  }
  StoreTile<R>({tile.place.args, tile.place.row + row, tile.place.column}, values);
}

void RunTile(TileRegisters& tiles, const Tile& tile) {
  BlockSums exact[kGroupsAtOnce];
  BlockSums sums;
  __builtin_memset(sums.bytes, 0, static_cast<size_t>(tile.rows * BlockSums::kRowBytes));
  for (int64_t first = 0; first < tile.groups; first += kGroupsAtOnce) {
    const int64_t count = Least(kGroupsAtOnce, tile.groups - first);
    if (tile.rows > kTileRows) {
      SumGroups<true>(tiles, tile, first, count, exact);
    } else {
      SumGroups<false>(tiles, tile, first, count, exact);
    }
    AddScaled(tile, first, count, exact, reinterpret_cast<float*>(sums.bytes));
  }
  int64_t row = 0;
  for (; row + 4 <= tile.rows; row += 4) StoreRows<4>(tile, sums, row);
  for (; row < tile.rows; ++row) StoreRows<1>(tile, sums, row);
}

// One row of w, or zeros, into its places in a panel; its scale into the panel's trailer.
void PackRow(const float* row, const MatrixShape& shape, int64_t lane, char* panel) {
  const int64_t groups = CeilDiv(shape.k, kGroup);
  const Int8Scale scale = ScaleOfWeights(row, row == nullptr ? 0 : shape.k);
  char* feature = panel + lane / kLanes * kTileBytes + lane % kLanes * 4;
  for (int64_t k = 0; k < groups * kGroup; ++k) {
    const int8_t value =
        static_cast<int8_t>(row != nullptr && k < shape.k ? RoundWeight(row[k], scale) : 0);
    char* quad = feature + k / kGroup * kStepBytes + k % kGroup / 4 * kTileRowBytes;
    __builtin_memcpy(quad + k % 4, &value, 1);
  }
  char* trailer = panel + groups * kStepBytes;
  __builtin_memcpy(trailer + lane * 4, &scale.scale, sizeof(float));
}

}  // namespace

size_t TileInt8PackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(CeilDiv(shape.n, kPanel) * PanelBytes(shape));
}

void TileInt8PackRows(const PackRowsArgs& args) {
  ForEachPanelRow(args, PanelBytes(args.shape), [&](int64_t i, int64_t lane, char* panel) {
    PackRow(PanelRow(args, i), args.shape, lane, panel);
  });
}

void TileInt8Gemm(const GemmArgs& args, const ParallelFor& parallel) {
  const MatrixShape& shape = args.w.shape;
  KERNEL_REQUIRE(args.x != nullptr && args.scratch != nullptr);
  KERNEL_REQUIRE(args.gated_bf16 == nullptr);
  KERNEL_REQUIRE(args.gated == nullptr || (shape.n % kPanel == 0 && args.bias == nullptr));
  const QuantisedRows<GroupScale, kGroup, kGroup> x(args);
  x.Fill(args, parallel);
  const Plan plan = MakePlan(args, {.rows_max = kBlockRows,
                                    .panel_bytes = PanelBytes(shape),
                                    .few_blocks = 4,
                                    .task_blocks = 4});
  const char* weights = static_cast<const char*>(args.w.data);
  parallel(plan.tasks(), [&](int64_t task, int) {
    BlockTiles block_tiles;
    RunTask(plan, task, [&](int64_t block, int64_t panel) {
      const int64_t row = plan.Begin(block);
      const char* w = weights + panel * plan.panel_bytes;
      block_tiles.SetRows(plan.Rows(block));
      RunTile(block_tiles.tiles, {reinterpret_cast<const char*>(x.bytes + row * x.stride),
                                  x.stride,
                                  plan.Rows(block),
                                  x.scales + row * x.groups,
                                  x.groups,
                                  w,
                                  TileAhead::Of(args, plan, w, block),
                                  {&args, row, panel * kPanel}});
    });
  });
}

#endif

}  // namespace tandem::kernels::TANDEM_ISA
