// y = x·wᵀ with int8 w and x (kernels/api/gemm.h, docs/kernels/gemm.md).
//
//   w[n, k] ≈ sw[n]·qw[n, k]        sw[n] = max_k |w[n, k]| / 127, when packing
//   x[m, k] ≈ sx[m, g]·qx[m, k]     sx[m, g] = max |x[m, k]| / 127 over group g of 64 k, per call
//   y[m, n] = sw[n]·Σ_g sx[m, g]·float(Σ_{k in g} qx·qw)     one FMA chain, g ascending
//
// The inner sums are exact in int32, the outer chain is fixed: rows, blocking, threads and class
// cannot change a bit. With groups, a large activation costs only its own group precision, not its
// whole row. The instructions want one unsigned operand: w is kept as qw + 128, and each group's
// sum begins at −128·Σ qx.
// Packed weights: panels of 32 output features, [ceil(N/32)] of {[ceil(K/4)][32][4] bytes, sw[32]
// fp32}: one stream of memory. Six rows by 32 features make 12 integer and 12 fp32 accumulators.
// Bound by bytes of w up to about 20 rows, by dot products above.
#include "kernels/cpu/gemm_int8.h"

#include "kernels/api/require.h"
#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/gemm_plan.h"
#include "kernels/cpu/int8_rows.h"
#include "kernels/cpu/panel_rows.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int64_t kQuadBytes = kPanel * 4;     // four k of a panel
constexpr int64_t kTrailerBytes = kPanel * 4;  // its scales
constexpr int64_t kGroup = 64;                 // k of x that share a scale
constexpr int64_t kGroupQuads = kGroup / 4;
constexpr int64_t kRowsMax = kHas32Registers ? 6 : 2;

TANDEM_INLINE int64_t PanelBytes(const MatrixShape& shape) {
  return CeilDiv(shape.k, 4) * kQuadBytes + kTrailerBytes;
}

// The factors of one row and group of x.
struct GroupScale {
  float scale;
  int32_t correction;  // −128·Σ qx

  TANDEM_INLINE static GroupScale From(const RoundedGroup& group) {
    return {group.scale, -128 * group.total};
  }
};

// R rows by one panel, and its epilogue.
struct Tile {
  const uint8_t* x;  // first row
  int64_t x_stride;
  const GroupScale* x_scales;  // first row
  int64_t groups;
  const char* w;  // the panel
  int64_t quads;
  Ahead ahead;
  TilePlace place;
};

// Adds one group of `quads` quads to sums; `w` and `x` are at its beginning.
template <int R>
TANDEM_INLINE void AddGroup(const Tile& tile, int64_t group, const char* w, int64_t quads,
                            V16 (&sums)[R][2]) {
  U16 acc[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const int32_t correction = tile.x_scales[r * tile.groups + group].correction;
    acc[r][0] = acc[r][1] = SetU1(static_cast<uint32_t>(correction));
  }
  const uint8_t* x = tile.x + group * kGroup;
  const char* const end = w + quads * kQuadBytes;
  const char* ahead = tile.ahead.At(w - tile.w);
  for (; w < end; w += kQuadBytes, x += 4, ahead += tile.ahead.step) {
    const U16 low = LoadU(reinterpret_cast<const uint32_t*>(w));
    const U16 high = LoadU(reinterpret_cast<const uint32_t*>(w) + kLanes);
    FetchLinePair(ahead);
    const uint8_t* row = x;
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const U16 quad = BroadcastQuad(row);
      acc[r][0] = DotBytes(low, quad, acc[r][0]);
      acc[r][1] = DotBytes(high, quad, acc[r][1]);
      row += tile.x_stride;
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const V16 scale = Set1(tile.x_scales[r * tile.groups + group].scale);
    sums[r][0] = Fma(FromInt(acc[r][0]), scale, sums[r][0]);
    sums[r][1] = Fma(FromInt(acc[r][1]), scale, sums[r][1]);
  }
}

template <int R>
void RunTile(const Tile& tile) {
  V16 sums[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = Zero();
  for (int64_t group = 0; group < tile.groups; ++group) {
    const int64_t first = group * kGroupQuads;
    AddGroup<R>(tile, group, tile.w + first * kQuadBytes, Least(kGroupQuads, tile.quads - first),
                sums);
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    Settle(sums[r][0]);
    Settle(sums[r][1]);
  }
  const float* w_scales = reinterpret_cast<const float*>(tile.w + tile.quads * kQuadBytes);
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const V16 w_scale = Load(w_scales + v * kLanes);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) sums[r][v] = Mul(sums[r][v], w_scale);
  }
  StoreTile<R>(tile.place, sums);
}

using TileFn = void (*)(const Tile& tile);
constexpr TileFn kTileFns[] = {
    RunTile<1>, RunTile<2>,
#if defined(__AVX512F__)
    RunTile<3>, RunTile<4>, RunTile<5>, RunTile<6>,
#endif
};

// One row of w, or zeros, into its places in a panel.
void PackRow(const float* row, int64_t k_count, int64_t lane, char* panel) {
  const int64_t quads = CeilDiv(k_count, 4);
  const Int8Scale scale = ScaleOfWeights(row, row == nullptr ? 0 : k_count);
  uint8_t* out = reinterpret_cast<uint8_t*>(panel) + lane * 4;
  for (int64_t k = 0; k < quads * 4; ++k) {
    const int value = row != nullptr && k < k_count ? RoundWeight(row[k], scale) : 0;
    out[k / 4 * kQuadBytes + k % 4] = static_cast<uint8_t>(value + 128);
  }
  reinterpret_cast<float*>(panel + quads * kQuadBytes)[lane] = scale.scale;
}

}  // namespace

size_t Int8PackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(CeilDiv(shape.n, kPanel) * PanelBytes(shape));
}

void Int8PackRows(const PackRowsArgs& args) {
  ForEachPanelRow(args, PanelBytes(args.shape), [&](int64_t i, int64_t lane, char* panel) {
    PackRow(PanelRow(args, i), args.shape.k, lane, panel);
  });
}

void Int8Gemm(const GemmArgs& args, const ParallelFor& parallel) {
  const MatrixShape& shape = args.w.shape;
  KERNEL_REQUIRE(args.x != nullptr && args.scratch != nullptr);
  KERNEL_REQUIRE(args.gated_bf16 == nullptr);
  KERNEL_REQUIRE(args.gated == nullptr || (shape.n % kPanel == 0 && args.bias == nullptr));
  const QuantisedRows<GroupScale, kGroup, 4> x(args);
  x.Fill(args, parallel);
  const Plan plan = MakePlan(
      args,
      {.rows_max = kRowsMax, .panel_bytes = PanelBytes(shape), .few_blocks = 12, .task_blocks = 4});
  const int64_t quads = CeilDiv(shape.k, 4);
  const char* weights = static_cast<const char*>(args.w.data);
  parallel(plan.tasks(), [&](int64_t task, int) {
    RunTask(plan, task, [&](int64_t block, int64_t panel) {
      const int64_t row = plan.Begin(block);
      const char* w = weights + panel * plan.panel_bytes;
      kTileFns[plan.Rows(block) - 1]({x.bytes + row * x.stride,
                                      x.stride,
                                      x.scales + row * x.groups,
                                      x.groups,
                                      w,
                                      quads,
                                      AheadOf(args, plan, w, block),
                                      {&args, row, panel * kPanel}});
    });
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
