// y = x·wᵀ with bf16 x and w (kernels/api/gemm.h, docs/kernels/gemm.md).
//
// Packed weights: panels of 32 output features, [ceil(N/32)][ceil(K/2)][32][2], so that a register
// holds a pair of k for sixteen features and one panel is one stream of memory. x stays row-major;
// a pair of it is broadcast. Twelve rows by 32 features make 24 accumulators, each one chain of
// `vdpbf16ps` with k ascending: neither rows, blocking nor threads change a bit.
// Bound by bytes of w up to about 20 rows, by dot products above.
#include "kernels/cpu/gemm_dot.h"

#include "kernels/api/require.h"
#include "kernels/cpu/dot.h"
#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/gemm_plan.h"
#include "kernels/cpu/panel_rows.h"
#include "kernels/cpu/round_rows.h"

#if defined(__AVX512BF16__)

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int64_t kPairBytes = kLinePair;  // a pair of k of a panel
constexpr int64_t kRowsMax = 12;

// R rows by one panel, and its epilogue.
struct Tile {
  const uint16_t* x;  // first row
  int64_t x_stride;
  const char* w;  // the panel
  int64_t pairs;
  Ahead ahead;
  TilePlace place;
};

template <int R>
void RunTile(const Tile& tile) {
  V16 acc[R][2];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = Zero();
  const char* w = tile.w;
  const char* x = reinterpret_cast<const char*>(tile.x);
  const int64_t stride = tile.x_stride * static_cast<int64_t>(sizeof(uint16_t));
  const char* const end = w + tile.pairs * kPanel * 4;
  const int64_t step = tile.ahead.step;
  const char* ahead = tile.ahead.first;
  for (; w < end; w += kPanel * 4, x += 4, ahead += step) {
    const Pairs16 low = LoadPairs(w), high = LoadPairs(w + 64);
    FetchLinePair(ahead);
    const char* row = x;
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Pairs16 pair = BroadcastPair(row);
      acc[r][0] = Dot(pair, low, acc[r][0]);
      acc[r][1] = Dot(pair, high, acc[r][1]);
      row += stride;
    }
  }
  StoreBf16Tile<R>(tile.place, acc);
}

using TileFn = void (*)(const Tile& tile);
constexpr TileFn kTileFns[] = {RunTile<1>, RunTile<2>,  RunTile<3>,  RunTile<4>,
                               RunTile<5>, RunTile<6>,  RunTile<7>,  RunTile<8>,
                               RunTile<9>, RunTile<10>, RunTile<11>, RunTile<12>};

}  // namespace

size_t DotPackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(CeilDiv(shape.n, kPanel) * CeilDiv(shape.k, 2) * kPanel * 4);
}

void DotPackRows(const PackRowsArgs& args) {
  const int64_t k_count = args.shape.k, pairs = CeilDiv(k_count, 2);
  ForEachPanelRow(args, pairs * kPairBytes, [&](int64_t i, int64_t lane, char* panel) {
    const float* row = PanelRow(args, i);
    uint16_t* out = reinterpret_cast<uint16_t*>(panel) + lane * 2;
    for (int64_t k = 0; k < pairs * 2; ++k) {
      const float value = row != nullptr && k < k_count ? row[k] : 0.0f;
      out[k / 2 * kPanel * 2 + k % 2] = RoundToBf16(value).bits;
    }
  });
}

void DotGemm(const GemmArgs& args, const ParallelFor& parallel) {
  const MatrixShape& shape = args.w.shape;
  const uint16_t* x = args.x_bf16;
  int64_t x_stride = args.x_stride;
  if (x == nullptr) {
    KERNEL_REQUIRE(args.scratch != nullptr);
    x_stride = CeilDiv(shape.k, 2) * 2;
    RoundRows(args, x_stride, parallel);
    x = static_cast<const uint16_t*>(args.scratch);
  } else {
    KERNEL_REQUIRE(shape.k % 2 == 0);
  }
  KERNEL_REQUIRE(args.gated_bf16 == nullptr || (shape.n % kPanel == 0 && args.bias == nullptr));
  const int64_t panel_bytes = CeilDiv(shape.k, 2) * kPairBytes;
  const Plan plan = MakePlan(
      args, {.rows_max = kRowsMax, .panel_bytes = panel_bytes, .few_blocks = 6, .task_blocks = 2});
  const char* weights = static_cast<const char*>(args.w.data);
  parallel(plan.tasks(), [&](int64_t task, int) {
    RunTask(plan, task, [&](int64_t block, int64_t panel) {
      const int64_t row = plan.Begin(block);
      const char* w = weights + panel * panel_bytes;
      kTileFns[plan.Rows(block) - 1]({x + row * x_stride,
                                      x_stride,
                                      w,
                                      panel_bytes / kPairBytes,
                                      AheadOf(args, plan, w, block),
                                      {&args, row, panel * kPanel}});
    });
  });
}

}  // namespace tandem::kernels::TANDEM_ISA

#endif
