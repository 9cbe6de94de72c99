// Matrix products, for every projection of the model: y[m, n] = Σ_k x[m, k] · w[n, k] (+ bias[n])
// (+ y[m, n]).
//
// A model packs its weights once, into a layout that belongs to the backend. Callers know the
// layout's size in bytes and nothing else, so tiles for matrix units and quantised weights need no
// change in callers. Numerics: fp32 accumulation from 0 with k ascending, then + bias, then +
// residual. A row's bits depend on that row and the weights only: not on `rows`, threads or
// blocking.
//
// Thread safety: packed weights are constant while products read them; different threads may pack
// different rows. Owner: the caller owns all memory. Errors: none; a broken REQUIRES ends the
// process (require.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/api/elementwise.h"
#include "kernels/api/parallel.h"

namespace tandem::kernels {

// How packed weights are stored. kBf16 rounds each weight to nearest even when packing. Portable
// classes widen it exactly when computing; classes with Backend::dot_products also round x to bf16
// and multiply pairs along k in one instruction.
//
// kInt8 keeps a row of w as integers of [-127, 127] times sw = max|w|/127, and rounds each group of
// 64 along k of a row of x in the same way, with a scale sx[g]. A group's sum is exact, and one FMA
// chain adds the groups from 0, g ascending, so all classes give the same bits:
// y = sw·Σ_g sx[g]·float(Σ_{k in g} qx·qw). x should be finite; otherwise y is unspecified but
// equal in all classes.
//
// kInt4 keeps each group of 32 along k of a row of w as Int4Group, which packing makes from weights
// or takes as given, and rounds x in groups of 32: exact sums, so again all classes give the same
// bits.
//
// kQ4K keeps Q4KBlocks as they are given; its products are those of kInt4, because a group's scale
// and minimum are products that fp32 holds exactly.
enum class WeightType { kF32, kBf16, kInt8, kInt4, kQ4K };

inline constexpr int64_t kInt4GroupSize = 32;
// w ≈ scale · q + offset, q in [0, 15]. Element i is the low half of quants[i], element 16 + i the
// high half.
struct Int4Group {
  uint16_t scale;  // fp16
  uint16_t offset;
  uint8_t quants[16];
};

// Eight groups of four bits: w = (scale · scales[g]) · q − min · mins[g], scales and minima in
// [0, 63]. Elements lie in quants[g] as in an Int4Group.
inline constexpr int64_t kQ4KBlockSize = 256;
struct Q4KBlock {
  uint16_t scale;  // fp16
  uint16_t min;
  uint8_t scales[8];
  uint8_t mins[8];
  uint8_t quants[8][16];
};

// The shape of w: `n` output features by `k` input features; kQ4K: k a multiple of 256.
struct MatrixShape {
  int64_t n = 0;
  int64_t k = 0;
  WeightType type = WeightType::kF32;
};

// Weights in a backend's packed layout. Borrows `data`, which must come from the same backend's
// pack_rows and lie on a 64-byte boundary.
struct PackedMatrix {
  MatrixShape shape;
  const void* data = nullptr;
};

// Bytes of the packed form of `shape`.
using PackedBytesFn = size_t (*)(const MatrixShape& shape);

// Some rows of w, to be packed.
struct PackRowsArgs {
  MatrixShape shape;
  int64_t first_row = 0;
  int64_t num_rows = 0;         // first_row + num_rows <= shape.n
  const float* rows = nullptr;  // [num_rows][shape.k]
  void* packed = nullptr;       // [PackedBytes(shape)], 64-byte boundary
  // kInt4: [num_rows][ceil(shape.k / 32)] groups instead of rows. Infinite and NaN scales become
  // finite ones.
  const Int4Group* groups = nullptr;
  // kQ4K: [num_rows][shape.k / 256] instead of rows; the same holds. REQUIRES: scales and minima in
  // their range.
  const Q4KBlock* blocks = nullptr;
};
// Packs these rows. Any split of [0, n) into ranges, in any order, gives the same bytes; disjoint
// ranges may be packed by different threads at once. The range with the last row also fills the
// padding.
using PackRowsFn = void (*)(const PackRowsArgs& args);

struct GemmArgs {
  const float* x = nullptr;  // [rows][x_stride], shape.k used
  // x already rounded to bf16, instead of `x`. REQUIRES: Backend::dot_products, kBf16 weights, an
  // even k.
  const uint16_t* x_bf16 = nullptr;
  int64_t x_stride = 0;  // elements between rows
  int64_t rows = 0;      // may be 0
  PackedMatrix w;
  const float* bias = nullptr;  // [shape.n] or nullptr
  bool add_to_y = false;        // residual: adds to what y holds instead of replacing it
  float* y = nullptr;           // [rows][y_stride], shape.n written; does not overlap x
  int64_t y_stride = 0;         // elements between rows
  // When set, 16 rows of a gate and 16 of an up projection alternate in w. The product then writes
  // act(gate)·up, rounded to bf16, into `gated_bf16`, [rows][y_stride] with shape.n / 2 written,
  // and uses neither y nor bias. REQUIRES: x_bf16, shape.n a multiple of 32.
  uint16_t* gated_bf16 = nullptr;
  float* gated = nullptr;  // the same in fp32. REQUIRES: x, kInt8, kInt4 or kQ4K weights
  GateActivation activation = GateActivation::kSilu;
  void* scratch = nullptr;  // [GemmScratchBytes(rows, shape.k)], 64-byte boundary
};
using GemmFn = void (*)(const GemmArgs& args, const ParallelFor& parallel);

// Bytes of scratch for one call with at most `rows` rows of at most `k` features.
size_t GemmScratchBytes(int64_t rows, int64_t k);

}  // namespace tandem::kernels
