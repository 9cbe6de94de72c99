// y = x·wᵀ with bf16 x and w, see kernels/api/gemm.h and docs/kernels/gemm.md.
//
// Packed weights: panels of 32 output features, [ceil(N/32)][ceil(K/2)][32][2], so that a register
// holds a pair of k for sixteen features and one panel is one stream of memory. x stays row-major;
// a pair of it is broadcast. Twelve rows by 32 features make 24 accumulators, each one chain of
// `vdpbf16ps` with k ascending: neither rows, blocking nor threads change a bit.
//   few rows:  a task takes one panel and all rows; the panel is read from memory once.
//   many rows: a task takes a few blocks of rows and as many panels as stay in L2; a block of x
//              stays in L1 while the panels pass.
// Bound by bytes of w up to about 20 rows, by dot products above.
#include "kernels/cpu/gemm_dot.h"

#include "kernels/api/require.h"
#include "kernels/cpu/activate.h"
#include "kernels/cpu/dot.h"

#if defined(__AVX512BF16__)

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int64_t kLanes = 16;
constexpr int64_t kPanel = 32;
constexpr int64_t kPairBytes = kPanel * 4;  // a pair of k of a panel
constexpr int64_t kRowsMax = 12;
// Weights that pass through L2 again and again: about half of the 1 MB that a Zen 4 core has.
constexpr int64_t kChunkBytes = 480 << 10;
// Up to this many blocks of rows a task takes them all and one panel.
constexpr int64_t kFewBlocks = 6;
// Blocks of rows that one task carries otherwise.
constexpr int64_t kTaskBlocks = 2;
// How far ahead of its use a stream of weights is fetched, in bytes.
constexpr int64_t kPrefetchBytes = 4096;

TANDEM_INLINE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
TANDEM_INLINE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }

// What a tile fetches into the second cache while it reads its panel: `step` bytes from `first` on
// for each pair of k; once the panel's first `turn` bytes are read, from `second` on.
struct Ahead {
  const char* first;
  int64_t turn;
  const char* second;
  int64_t step;
};

// R rows by one panel, and its epilogue.
struct Tile {
  const uint16_t* x;  // first row
  int64_t x_stride;
  const char* w;  // the panel
  int64_t pairs;
  Ahead ahead;
  const GemmArgs* args;
  int64_t row, column;  // of y
};

template <int R>
TANDEM_INLINE void StoreSums(const Tile& tile, const V16 (&acc)[R][2]) {
  const GemmArgs& args = *tile.args;
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const int64_t column = tile.column + v * kLanes;
    const Mask16 mask = LaneRange(0, args.w.shape.n - column);
    const V16 bias = args.bias == nullptr ? Zero() : LoadMasked(mask, args.bias + column);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      float* y = args.y + (tile.row + r) * args.y_stride + column;
      V16 sum = acc[r][v];
      if (args.bias != nullptr) sum = Add(sum, bias);
      if (args.add_to_y) sum = Add(sum, LoadMasked(mask, y));
      StoreMasked(mask, y, sum);
    }
  }
}

template <int R, GateActivation kActivation>
TANDEM_INLINE void StoreGated(const Tile& tile, const V16 (&acc)[R][2]) {
  const GemmArgs& args = *tile.args;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    StoreBf16(args.gated_bf16 + (tile.row + r) * args.y_stride + tile.column / 2,
              Mul(Activate<kActivation>(acc[r][0]), acc[r][1]));
  }
}

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
  for (const char* stop = w + tile.ahead.turn;; stop = end, ahead = tile.ahead.second) {
    for (; w < stop; w += kPanel * 4, x += 4, ahead += step) {
      const Pairs16 low = LoadPairs(w), high = LoadPairs(w + 64);
      _mm_prefetch(ahead, _MM_HINT_T1);
      _mm_prefetch(ahead + 64, _MM_HINT_T1);
      const char* row = x;
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Pairs16 pair = BroadcastPair(row);
        acc[r][0] = Dot(pair, low, acc[r][0]);
        acc[r][1] = Dot(pair, high, acc[r][1]);
        row += stride;
      }
    }
    if (w == end) break;
  }
  if (tile.args->gated_bf16 == nullptr) {
    StoreSums<R>(tile, acc);
  } else if (tile.args->activation == GateActivation::kSilu) {
    StoreGated<R, GateActivation::kSilu>(tile, acc);
  } else {
    StoreGated<R, GateActivation::kGeluTanh>(tile, acc);
  }
}

using TileFn = void (*)(const Tile& tile);
constexpr TileFn kTileFns[] = {RunTile<1>, RunTile<2>,  RunTile<3>,  RunTile<4>,
                               RunTile<5>, RunTile<6>,  RunTile<7>,  RunTile<8>,
                               RunTile<9>, RunTile<10>, RunTile<11>, RunTile<12>};

// How a product is cut into tasks.
struct Plan {
  int64_t rows, row_blocks;  // blocks of equal size, as far as that goes
  int64_t panels, panel_bytes;
  int64_t task_blocks, task_panels;
  int64_t block_tasks, panel_tasks;

  TANDEM_INLINE int64_t Begin(int64_t block) const { return rows * block / row_blocks; }
};

Plan MakePlan(const GemmArgs& args) {
  Plan plan = {};
  plan.rows = args.rows;
  plan.row_blocks = CeilDiv(args.rows, kRowsMax);
  plan.panels = CeilDiv(args.w.shape.n, kPanel);
  plan.panel_bytes = CeilDiv(args.w.shape.k, 2) * kPanel * 4;
  if (plan.row_blocks <= kFewBlocks) {
    plan.task_blocks = plan.row_blocks;
    plan.task_panels = 1;
  } else {
    plan.task_blocks = kTaskBlocks;
    const int64_t fitting = kChunkBytes / plan.panel_bytes;
    plan.task_panels = fitting < 1 ? 1 : fitting;
    // Ranges of equal size, so that the last is not a narrow one.
    plan.task_panels = CeilDiv(plan.panels, CeilDiv(plan.panels, plan.task_panels));
  }
  plan.block_tasks = CeilDiv(plan.row_blocks, plan.task_blocks);
  plan.panel_tasks = CeilDiv(plan.panels, plan.task_panels);
  return plan;
}

// What block `block` fetches at panel `w`. With few rows that is the panel that its worker will
// probably take next, `stride` further, in as many parts as there are blocks.
TANDEM_INLINE Ahead AheadOf(const GemmArgs& args, const Plan& plan, const char* w, int64_t block,
                            int stride) {
  const int64_t bytes = plan.panel_bytes;
  if (plan.task_panels > 1) return {w + kPrefetchBytes, bytes, nullptr, kPairBytes};
  const char* last = static_cast<const char*>(args.w.data) + (plan.panels - 1) * bytes;
  const char* next = w + stride * bytes;
  if (next > last) next = last;
  if (plan.row_blocks == 1) {
    const int64_t turn = bytes > kPrefetchBytes ? bytes - kPrefetchBytes : 0;
    return {w + kPrefetchBytes, turn, next, kPairBytes};
  }
  const int64_t step = CeilDiv(kPairBytes, plan.row_blocks);
  return {next + bytes / kPairBytes * step * block, bytes, nullptr, step};
}

// Tasks of one range of panels follow each other, so that workers share it.
struct Input {
  const uint16_t* x;
  int64_t x_stride;
  int num_workers;
};
void RunTask(const GemmArgs& args, const Plan& plan, const Input& input, int64_t task) {
  const int64_t first_panel = task / plan.block_tasks * plan.task_panels;
  const int64_t last_panel = Least(first_panel + plan.task_panels, plan.panels);
  const int64_t first_block = task % plan.block_tasks * plan.task_blocks;
  const int64_t last_block = Least(first_block + plan.task_blocks, plan.row_blocks);
  const char* weights = static_cast<const char*>(args.w.data);
  for (int64_t block = first_block; block < last_block; ++block) {
    const int64_t row = plan.Begin(block);
    const TileFn run = kTileFns[plan.Begin(block + 1) - row - 1];
    for (int64_t panel = first_panel; panel < last_panel; ++panel) {
      const char* w = weights + panel * plan.panel_bytes;
      run({input.x + row * input.x_stride, input.x_stride, w, plan.panel_bytes / kPairBytes,
           AheadOf(args, plan, w, block, input.num_workers), &args, row, panel * kPanel});
    }
  }
}

// Rounds rows of fp32 x into scratch, [rows][k rounded up to even].
void RoundRows(const GemmArgs& args, int64_t x_stride, const ParallelFor& parallel) {
  const int64_t k = args.w.shape.k;
  uint16_t* rounded = static_cast<uint16_t*>(args.scratch);
  parallel(args.rows, [&](int64_t row, int) {
    const float* x = args.x + row * args.x_stride;
    uint16_t* out = rounded + row * x_stride;
    for (int64_t i = 0; i < k; i += kLanes) {
      const Mask16 mask = LaneRange(0, k - i);
      StoreBf16Masked(LaneRange(0, x_stride - i), out + i, LoadMasked(mask, x + i));
    }
  });
}

}  // namespace

size_t DotPackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(CeilDiv(shape.n, kPanel) * CeilDiv(shape.k, 2) * kPanel * 4);
}

void DotPackRows(const PackRowsArgs& args) {
  const int64_t k_count = args.shape.k, pairs = CeilDiv(k_count, 2);
  uint16_t* packed = static_cast<uint16_t*>(args.packed);
  const bool last = args.first_row + args.num_rows == args.shape.n;
  const int64_t end =
      last ? CeilDiv(args.shape.n, kPanel) * kPanel : args.first_row + args.num_rows;
  for (int64_t n = args.first_row; n < end; ++n) {
    const float* row = n < args.shape.n ? args.rows + (n - args.first_row) * k_count : nullptr;
    uint16_t* out = packed + ((n / kPanel) * pairs * kPanel + n % kPanel) * 2;
    for (int64_t k = 0; k < pairs * 2; ++k) {
      const float value = row != nullptr && k < k_count ? row[k] : 0.0f;
      out[k / 2 * kPanel * 2 + k % 2] = RoundToBf16(value).bits;
    }
  }
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
  const Plan plan = MakePlan(args);
  const Input input = {x, x_stride, parallel.num_workers};
  parallel(plan.block_tasks * plan.panel_tasks,
           [&](int64_t task, int) { RunTask(args, plan, input, task); });
}

}  // namespace tandem::kernels::TANDEM_ISA

#endif
