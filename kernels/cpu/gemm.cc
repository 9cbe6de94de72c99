// y = x·wᵀ (kernels/api/gemm.h) with fp32 or bf16 w, and the choice of the product for other types.
//
// Packed weights: panels of 16 output features, [ceil(N/16)][K][16], lanes across N, so that a
// product needs no reduction across lanes. With more than one row, x is first packed into blocks of
// R ≤ 12 (AVX2: 6) rows, [rows/R][K][R]: broadcasts then read one stream whatever the row stride.
// A task takes a chunk of rows whose packed x stays in L2 and a range of panels; each panel group
// is read once from memory for each chunk. Bound by bytes of w up to about 8 rows, by FMAs above.
// Measured on a Zen 4 EPYC, one thread, peak 117 GFLOP/s: AVX-512 104-115 for 64 rows and more,
// AVX2 87-110; one row reads fp32 weights from memory at 27 GB/s, bf16 at 20-31.
#include "kernels/api/gemm.h"

#include "kernels/api/require.h"
#include "kernels/cpu/fma_block.h"
#include "kernels/cpu/gemm_dot.h"
#include "kernels/cpu/gemm_int4.h"
#include "kernels/cpu/gemm_int8.h"
#include "kernels/cpu/gemm_tile.h"
#include "kernels/cpu/ops.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int64_t kLanes = 16;
// Packed x of one task's rows: under half of the 1 MB of L2 a Zen 4 core has, the rest being w's.
constexpr int64_t kChunkBytes = 384 << 10;

TANDEM_INLINE int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
TANDEM_INLINE int64_t Least(int64_t a, int64_t b) { return a < b ? a : b; }
TANDEM_INLINE int64_t Most(int64_t a, int64_t b) { return a > b ? a : b; }

// One product of R rows by NV panels, and its epilogue.
struct Tile {
  const float* a;  // [k][R]
  const void* w;   // first panel
  int64_t k;
  const float* bias;  // at the first column, or nullptr
  bool add_to_y;
  float* y;  // first row, first column
  int64_t y_stride;
  int64_t columns;  // ≤ NV · 16
};

template <int R, int NV, typename T>
void RunTile(const Tile& tile) {
  V16 acc[R][NV];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = Zero();
  }
  const T* panels[NV];
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) panels[v] = static_cast<const T*>(tile.w) + v * tile.k * kLanes;
  FmaBlock<R, NV, R, 1>(tile.a, panels, kLanes, tile.k, acc);
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) {
    Mask16 mask = LaneRange(0, tile.columns - v * kLanes);
    V16 bias = tile.bias == nullptr ? Zero() : LoadMasked(mask, tile.bias + v * kLanes);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      float* y = tile.y + r * tile.y_stride + v * kLanes;
      V16 sum = acc[r][v];
      if (tile.bias != nullptr) sum = Add(sum, bias);
      if (tile.add_to_y) sum = Add(sum, LoadMasked(mask, y));
      StoreMasked(mask, y, sum);
    }
  }
}

using TileFn = void (*)(const Tile& tile);
struct TileFns {
  int vectors;  // panels the wide function takes
  TileFn wide;
  TileFn single;
};

template <int R, typename T>
constexpr TileFns FnsFor() {
  return {BlockVectors(R), RunTile<R, BlockVectors(R), T>, RunTile<R, 1, T>};
}

template <typename T>
TileFns SelectTile(int64_t rows) {
  static constexpr TileFns kFns[] = {
    FnsFor<1, T>(),
    FnsFor<2, T>(),
    FnsFor<3, T>(),
    FnsFor<4, T>(),
    FnsFor<5, T>(),
    FnsFor<6, T>(),
#if defined(__AVX512F__)
    FnsFor<7, T>(),
    FnsFor<8, T>(),
    FnsFor<9, T>(),
    FnsFor<10, T>(),
    FnsFor<11, T>(),
    FnsFor<12, T>(),
#endif
  };
  return kFns[rows - 1];
}

// Rows divided into the fewest blocks of at most kMaxBlockRows, of nearly equal size.
struct RowBlocks {
  int64_t rows;
  int64_t count;

  TANDEM_INLINE int64_t Begin(int64_t block) const { return rows * block / count; }
  TANDEM_INLINE int64_t Size(int64_t block) const { return Begin(block + 1) - Begin(block); }
};

void PackX(const GemmArgs& args, const RowBlocks& blocks, int64_t block, float* packed) {
  const int64_t k_count = args.w.shape.k, begin = blocks.Begin(block), size = blocks.Size(block);
  float* out = packed + begin * k_count;
  for (int64_t r = 0; r < size; ++r) {
    const float* row = args.x + (begin + r) * args.x_stride;
    for (int64_t k = 0; k < k_count; ++k) out[k * size + r] = row[k];
  }
}

// Computes the tiles of some row blocks by some panels.
struct Region {
  int64_t block_begin, block_end;
  int64_t panel_begin, panel_end;
};

template <typename T>
void RunRegion(const GemmArgs& args, const RowBlocks& blocks, const float* packed_x,
               const Region& region) {
  const int64_t k = args.w.shape.k;
  const T* weights = static_cast<const T*>(args.w.data);
  // All blocks of a region take one group of panels before the next, so that a group is read from
  // memory once. The smallest blocks take the most panels at a time.
  const int64_t group = BlockVectors(static_cast<int>(blocks.rows / blocks.count));
  for (int64_t first = region.panel_begin; first < region.panel_end; first += group) {
    const int64_t last = Least(first + group, region.panel_end);
    for (int64_t block = region.block_begin; block < region.block_end; ++block) {
      const int64_t row = blocks.Begin(block);
      const TileFns fns = SelectTile<T>(blocks.Size(block));
      for (int64_t panel = first; panel < last;) {
        const bool wide = panel + fns.vectors <= last;
        const int64_t taken = wide ? fns.vectors : 1;
        const int64_t column = panel * kLanes;
        Tile tile = {packed_x + row * k,
                     weights + panel * k * kLanes,
                     k,
                     args.bias == nullptr ? nullptr : args.bias + column,
                     args.add_to_y,
                     args.y + row * args.y_stride + column,
                     args.y_stride,
                     Least(taken * kLanes, args.w.shape.n - column)};
        (wide ? fns.wide : fns.single)(tile);
        panel += taken;
      }
    }
  }
}

template <typename T>
void PackRowsAs(const PackRowsArgs& args) {
  const int64_t k_count = args.shape.k;
  T* packed = static_cast<T*>(args.packed);
  for (int64_t i = 0; i < args.num_rows; ++i) {
    const int64_t n = args.first_row + i;
    const float* row = args.rows + i * k_count;
    T* out = packed + (n / kLanes) * k_count * kLanes + n % kLanes;
    for (int64_t k = 0; k < k_count; ++k) {
      out[k * kLanes] = RoundTo(row[k], static_cast<const T*>(nullptr));
    }
  }
  if (args.first_row + args.num_rows != args.shape.n) return;
  for (int64_t n = args.shape.n; n % kLanes != 0; ++n) {
    T* out = packed + (n / kLanes) * k_count * kLanes + n % kLanes;
    for (int64_t k = 0; k < k_count; ++k) out[k * kLanes] = T{};
  }
}

}  // namespace

size_t PackedBytes(const MatrixShape& shape) {
  if constexpr (kHasTiles) {
    if (shape.type == WeightType::kBf16) return TilePackedBytes(shape);
    if (shape.type == WeightType::kInt8) return TileInt8PackedBytes(shape);
  }
  if (shape.type == WeightType::kInt8) return Int8PackedBytes(shape);
  if (IsInt4(shape.type)) return Int4PackedBytes(shape);
  if constexpr (kHasDotProducts) {
    if (shape.type == WeightType::kBf16) return DotPackedBytes(shape);
  }
  const int64_t element = shape.type == WeightType::kF32 ? sizeof(float) : sizeof(Bf16);
  return static_cast<size_t>(CeilDiv(shape.n, kLanes) * kLanes * shape.k * element);
}

void PackRows(const PackRowsArgs& args) {
  KERNEL_REQUIRE(args.first_row >= 0 && args.num_rows >= 0);
  KERNEL_REQUIRE(args.first_row + args.num_rows <= args.shape.n);
  KERNEL_REQUIRE(args.groups == nullptr || args.shape.type == WeightType::kInt4);
  KERNEL_REQUIRE((args.blocks != nullptr) == (args.shape.type == WeightType::kQ4K));
  if (args.num_rows == 0) return;
  if (args.shape.type == WeightType::kF32) {
    PackRowsAs<float>(args);
  } else if (args.shape.type == WeightType::kInt8) {
    if constexpr (kHasTiles) {
      TileInt8PackRows(args);
    } else {
      Int8PackRows(args);
    }
  } else if (IsInt4(args.shape.type)) {
    Int4PackRows(args);
  } else if constexpr (kHasTiles) {
    TilePackRows(args);
  } else if constexpr (kHasDotProducts) {
    DotPackRows(args);
  } else {
    PackRowsAs<Bf16>(args);
  }
}

void Gemm(const GemmArgs& args, const ParallelFor& parallel) {
  const MatrixShape& shape = args.w.shape;
  KERNEL_REQUIRE(args.rows >= 0 && shape.n > 0 && shape.k > 0);
  KERNEL_REQUIRE(args.x_stride >= shape.k);
  const bool gated = args.gated_bf16 != nullptr || args.gated != nullptr;
  KERNEL_REQUIRE(args.y_stride >= (gated ? shape.n / 2 : shape.n));
  if (args.rows == 0) return;
  if constexpr (kHasTiles) {
    if (shape.type == WeightType::kBf16) return TileGemm(args, parallel);
    if (shape.type == WeightType::kInt8) return TileInt8Gemm(args, parallel);
  }
  if (shape.type == WeightType::kInt8) return Int8Gemm(args, parallel);
  if (IsInt4(shape.type)) return Int4Gemm(args, parallel);
  if constexpr (kHasDotProducts) {
    if (shape.type == WeightType::kBf16) return DotGemm(args, parallel);
  }
  KERNEL_REQUIRE(args.x_bf16 == nullptr && !gated);
  KERNEL_REQUIRE(args.rows <= 1 || args.scratch != nullptr);
  const RowBlocks blocks = {args.rows, CeilDiv(args.rows, kMaxBlockRows)};
  const float* packed_x = args.x;
  if (args.rows > 1) {
    float* packed = static_cast<float*>(args.scratch);
    parallel(blocks.count, [&](int64_t block, int) { PackX(args, blocks, block, packed); });
    packed_x = packed;
  }
  const int64_t chunk_blocks =
      Most(4, kChunkBytes / (shape.k * static_cast<int64_t>(sizeof(float)) * kMaxBlockRows));
  const int64_t num_chunks = CeilDiv(blocks.count, chunk_blocks);
  const int64_t panels = CeilDiv(shape.n, kLanes);
  // About eight tasks a worker in all, whole groups of four panels.
  const int64_t wanted_ranges = Most(1, CeilDiv(8 * parallel.num_workers, num_chunks));
  const int64_t range_panels = CeilDiv(CeilDiv(panels, wanted_ranges), 4) * 4;
  const int64_t num_ranges = CeilDiv(panels, range_panels);
  parallel(num_chunks * num_ranges, [&](int64_t task, int) {
    const int64_t chunk = task / num_ranges, range = task % num_ranges;
    const Region region = {chunk * chunk_blocks, Least((chunk + 1) * chunk_blocks, blocks.count),
                           range * range_panels, Least((range + 1) * range_panels, panels)};
    if (shape.type == WeightType::kF32) {
      RunRegion<float>(args, blocks, packed_x, region);
    } else {
      RunRegion<Bf16>(args, blocks, packed_x, region);
    }
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
