// y = x·wᵀ with int8 w and x (kernels/api/device_gemm.h, kInt8): the numbers and the bits of the
// CPU's int8 products (kernels/cpu/gemm_int8.cc).
//
//   w[n, k] ≈ sw[n]·qw[n, k]        sw[n] = max_k |w[n, k]| / 127, when packing
//   x[m, k] ≈ sx[m, g]·qx[m, k]     sx[m, g] = max |x[m, k]| / 127 over group g of 64 k: `quantise`
//   y[m, n] = sw[n]·Σ_g sx[m, g]·float(Σ_{k in g} qx·qw)     one FMA chain, g ascending
// The inner sums are exact in int32 in whatever order a tensor core adds, the outer chain is fixed:
// rows, tiles, places and GPUs cannot change a bit.
//
// Grid and pipeline as in gemm.cu, with mma.sync m16n8k32. Shared memory: stage s holds x's tile
// [m][k], w's [n][k], and the scales of x [k / 64][m]. An integer accumulator begins at the bits of
// 1.5·2²³, and so becomes a float by a subtraction: sums of 64 products stay below 2²². Bound:
// bytes of w for few rows; tensor cores for many.
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_quantise.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/ops/gemm_tile.h"
#include "kernels/cuda/ops/launchers.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

constexpr int32_t kFloatBits = 0x4b400000;   // of kFloatOffset
constexpr float kFloatOffset = 12582912.0f;  // 1.5·2²³: its last bit counts ones

template <gemm::Tile kTile>
struct GemmInt8Kernel : TileOf<kTile> {
  using Params = DeviceGemmArgs;
  static constexpr const char* kName = "int8 gemm kernel";
  static constexpr int kBlocksPerMultiprocessor = 1;
  using Tile = TileOf<kTile>;
  static constexpr int kTilesM = Tile::kTilesM, kTilesN = Tile::kTilesN;
  static constexpr int kChunks = kTile.k / 16;  // of a row of a tile
  static constexpr int kGroups = kTile.k / kInt8GroupSize;

  TANDEM_KERNEL void Load(const Params& p, int index, char* stage) {
    const int columns = PaddedColumns(p.k);
    const int first_m = BlockY() * kTile.m, first_n = BlockX() * kTile.n;
    const auto rows_of = [&](const void* matrix, int first, int end) {
      return [=](int row, int chunk) -> const void* {
        const int k = index * kTile.k + chunk * 16;
        if (first + row >= end || k >= columns) return nullptr;
        return static_cast<const char*>(matrix) + int64_t{first + row} * columns + k;
      };
    };
    Tile::template CopyTile<kTile.m, kChunks>(
        stage, p.x_rounded, rows_of(p.x_rounded, first_m, p.rows), SwizzledOffset<kChunks>);
    Tile::template CopyTile<kTile.n, kChunks>(stage + kTile.x_bytes(), p.packed,
                                              rows_of(p.packed, first_n, p.n),
                                              SwizzledOffset<kChunks>);
    const auto scales = [&](int group, int quad) -> const void* {
      const int g = index * kGroups + group, m = first_m + quad * 4;
      if (g >= columns / kInt8GroupSize || m >= ScaleStride(p.rows)) return nullptr;
      return p.x_scales + int64_t{g} * ScaleStride(p.rows) + m;
    };
    Tile::template CopyTile<kGroups, kTile.m / 4>(
        stage + kTile.x_bytes() + kTile.w_bytes(), p.x_scales, scales,
        [](int group, int quad) { return (group * kTile.m + quad * 4) * 4; });
  }

  // Rows of w for all of the warp's columns, of the two chunks from `chunk`: 32 of k.
  TANDEM_KERNEL void LoadB(const char* w, int chunk, uint32_t b[kTilesN][2]) {
    const int lane = LaneIndex();
#pragma unroll
    for (int j = 0; j < kTilesN; j += 2) {
      // Matrices: the two chunks of eight rows of w, then of the next eight. Where there are only
      // eight, the upper lanes repeat them.
      const int next = kTilesN == 1 ? 0 : lane / 16 * 8;
      const int row = Tile::FirstN() + j * 8 + next + lane % 8;
      uint32_t loaded[4];
      LoadMatrix4(loaded, w + SwizzledOffset<kChunks>(row, chunk + lane / 8 % 2));
#pragma unroll
      for (int i = 0; i < 4 && j + i / 2 < kTilesN; ++i) b[j + i / 2][i % 2] = loaded[i];
    }
  }

  // Adds the products of one group of 64 k: two instructions.
  TANDEM_KERNEL void MultiplyGroup(const char* stage, int group, float sums[kTilesM][kTilesN][4]) {
    const char* w = stage + kTile.x_bytes();
    const float* scales = reinterpret_cast<const float*>(w + kTile.w_bytes()) + group * kTile.m;
    uint32_t b[2][kTilesN][2];
#pragma unroll
    for (int step = 0; step < 2; ++step) LoadB(w, group * 4 + step * 2, b[step]);
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
      int32_t acc[kTilesN][4];
#pragma unroll
      for (int e = 0; e < kTilesN * 4; ++e) acc[e / 4][e % 4] = kFloatBits;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        uint32_t a[4];
        Tile::template LoadA<kChunks>(stage, i, group * 4 + step * 2, a);
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) MmaInt8(acc[j], a, b[step][j]);
      }
      const int row = Tile::FirstM() + i * 16 + LaneIndex() / 4;
      const float scale[2] = {scales[row], scales[row + 8]};
#pragma unroll
      for (int e = 0; e < kTilesN * 4; ++e) {
        const uint32_t bits = static_cast<uint32_t>(acc[e / 4][e % 4]);
        const float sum = Add(BitsToFloat(bits), -kFloatOffset);
        sums[i][e / 4][e % 4] = Fma(sum, scale[e % 4 / 2], sums[i][e / 4][e % 4]);
      }
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    float sums[kTilesM][kTilesN][4] = {};
    Tile::Pipeline((PaddedColumns(p.k) + kTile.k - 1) / kTile.k,
                   [&](int i, char* stage) { Load(p, i, stage); },
                   [&](int, const char* stage) {
#pragma unroll
                     for (int group = 0; group < kGroups; ++group) {
                       MultiplyGroup(stage, group, sums);
                     }
                   });
    Tile::Store(p, sums, [&](int n) { return Tile::RowScales(p, n); });
  }
};

}  // namespace

void GemmInt8(const DeviceGemmArgs& args, DeviceStream& stream) {
  LaunchOneOf<GemmInt8Kernel, gemm::kInt8Tiles>(args, stream);
}

}  // namespace tandem::kernels::TANDEM_SIMT
