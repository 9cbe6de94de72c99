// y = x·wᵀ with bf16 x and w in four or eight bits (kernels/api/device_gemm.h, kInt4 and kFp8). The
// weights become bf16 on their way from shared memory into registers, so each row has the bits that
// gemm.cu gives for the same weights stored as bf16.
//
//   int4: w[n, k] = bf16(s[n, g]·q[n, k] + o[n, g])   q in [0, 15]; s, o fp16; g: group of 32 k
//   fp8:  y[m, n] = s[n]·Σ_k x[m, k]·e[n, k]          e an e4m3 number, exactly a bf16 one
//
// Grid, pipeline and instruction as in gemm.cu. Each lane finds the weights of its fragments of 32
// k side by side (kernels/api/device_matrix.h): a word of int4, two of fp8. Shared memory: stage s
// holds x's tile [m][k], w's [n][k] packed, and for int4 [n][k / 32] of {s, o}. Bound: bytes of w
// for few rows; for many, the conversions (about four instructions a weight, by each row of warps)
// compete with the tensor cores.
#include "kernels/api/device_gemm.h"
#include "kernels/api/device_weight_type.h"
#include "kernels/cuda/ops/gemm_tile.h"
#include "kernels/cuda/ops/launchers.h"
#include "kernels/cuda/simt/byte_codes.h"

namespace tandem::kernels::TANDEM_SIMT {
namespace {

// The finite fp16 number in the low half of `bits`, exactly.
TANDEM_DEVICE float HalfToFloat(uint32_t bits) {
  const float magnitude = Mul(BitsToFloat((bits & 0x7fffu) << 13), 0x1p112f);
  return (bits & 0x8000u) != 0 ? -magnitude : magnitude;
}

// Weights of one row for a lane's fragments of two steps of 16: b[step] is Mma's operand.
struct Int4Weights {
  static constexpr int kUnitChunks = 1;  // of a group of 32 in a row of w

  // `scales`: s in the low half, o in the high one.
  TANDEM_KERNEL void Unpack(const char* unit, uint32_t scales, uint32_t b[2][2]) {
    constexpr uint32_t kOne = 0x3f803f80u, kMinus128 = 0xc300c300u;
    const uint32_t word = reinterpret_cast<const uint32_t*>(unit)[LaneIndex() % 4];
    const float scale = HalfToFloat(scales), offset = HalfToFloat(scales >> 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // In bf16, 128 + q has the bits of 128 with q in the lowest ones.
      const uint32_t shifted = (word >> (4 * i) & 0x000f000fu) | 0x43004300u;
      const uint32_t pair = FmaBf16Pair(shifted, kOne, kMinus128);
      b[i / 2][i % 2] = PackBf16(Fma(BitsToFloat(pair << 16), scale, offset),
                                 Fma(BitsToFloat(pair & 0xffff0000u), scale, offset));
    }
  }
};

struct Fp8Weights {
  static constexpr int kUnitChunks = 2;

  TANDEM_KERNEL void Unpack(const char* unit, uint32_t, uint32_t b[2][2]) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(unit) + LaneIndex() % 4 * 2;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        b[step][i] = WidenFp8Pair(i == 0 ? words[step] : words[step] << 8);
      }
    }
  }
};

template <gemm::Tile kTile, typename Weights>
struct WeightOnlyKernel : TileOf<kTile> {
  using Params = DeviceGemmArgs;
  static constexpr int kBlocksPerMultiprocessor = 1;
  using Tile = TileOf<kTile>;
  static constexpr int kTilesM = Tile::kTilesM, kTilesN = Tile::kTilesN;
  static constexpr bool kInt4 = kTile.type == DeviceWeightType::kInt4;
  static constexpr int kXChunks = kTile.k / 8;  // of a row of a tile
  static constexpr int kUnitChunks = Weights::kUnitChunks;
  static constexpr int kGroups = kTile.k / 32;
  static constexpr int kWChunks = kGroups * kUnitChunks;

  TANDEM_KERNEL int WPlace(int row, int chunk) {
    return SpreadOffset<kWChunks, kUnitChunks>(row, chunk);
  }

  TANDEM_KERNEL void Load(const Params& p, int index, char* stage) {
    const int first_m = BlockY() * kTile.m, first_n = BlockX() * kTile.n;
    const int groups = PaddedColumns(p.k) / 32;
    const auto x = [&](int row, int chunk) -> const void* {
      const int k = index * kTile.k + chunk * 8, m = first_m + row;
      return m < p.rows && k < p.k ? p.x + int64_t{m} * p.k + k : nullptr;
    };
    Tile::template CopyTile<kTile.m, kXChunks>(stage, p.x, x, SwizzledOffset<kXChunks>);
    // Chunks of w or its scales, kPerRow of them in this tile and in_row in the whole row.
    const auto rows_of = [&](const void* matrix, int per_tile, int in_row) {
      return [=, &p](int row, int chunk) -> const void* {
        const int c = index * per_tile + chunk, n = first_n + row;
        if (n >= p.n || c >= in_row) return nullptr;
        return static_cast<const char*>(matrix) + (int64_t{n} * in_row + c) * 16;
      };
    };
    Tile::template CopyTile<kTile.n, kWChunks>(stage + kTile.x_bytes(), p.packed,
                                               rows_of(p.packed, kWChunks, groups * kUnitChunks),
                                               WPlace);
    if constexpr (kInt4) {
      Tile::template CopyTile<kTile.n, kGroups / 4>(
          stage + kTile.x_bytes() + kTile.w_bytes(), p.scales,
          rows_of(p.scales, kGroups / 4, groups / 4),
          [](int row, int chunk) { return (row * (kGroups / 4) + chunk) * 16; });
    }
  }

  TANDEM_KERNEL void MultiplyGroup(const char* stage, int group, float acc[kTilesM][kTilesN][4]) {
    const char* w = stage + kTile.x_bytes();
    const uint32_t* scales = reinterpret_cast<const uint32_t*>(w + kTile.w_bytes());
    uint32_t b[kTilesN][2][2];
#pragma unroll
    for (int j = 0; j < kTilesN; ++j) {
      const int row = Tile::FirstN() + j * 8 + LaneIndex() / 4;
      Weights::Unpack(w + WPlace(row, group * kUnitChunks),
                      kInt4 ? scales[row * kGroups + group] : 0, b[j]);
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) {
        uint32_t a[4];
        Tile::template LoadA<kXChunks>(stage, i, group * 4 + step * 2, a);
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) Mma(acc[i][j], a, b[j][step]);
      }
    }
  }

  TANDEM_KERNEL void Run(const Params& p) {
    float acc[kTilesM][kTilesN][4] = {};
    Tile::Pipeline((p.k + kTile.k - 1) / kTile.k, [&](int i, char* stage) { Load(p, i, stage); },
                   [&](int, const char* stage) {
#pragma unroll
                     for (int group = 0; group < kGroups; ++group) MultiplyGroup(stage, group, acc);
                   });
    Tile::Store(p, acc, [&](int n) {
      return kInt4 ? FloatPair{1.0f, 1.0f} : Tile::RowScales(p, n);
    });
  }
};

template <gemm::Tile kTile>
struct GemmInt4Kernel : WeightOnlyKernel<kTile, Int4Weights> {
  static constexpr const char* kName = "int4 gemm kernel";
};
template <gemm::Tile kTile>
struct GemmFp8Kernel : WeightOnlyKernel<kTile, Fp8Weights> {
  static constexpr const char* kName = "fp8 gemm kernel";
};

}  // namespace

void GemmWeightOnly(const DeviceGemmArgs& args, DeviceStream& stream) {
  if (args.type == DeviceWeightType::kInt4) {
    LaunchOneOf<GemmInt4Kernel, gemm::kInt4Tiles>(args, stream);
  } else {
    LaunchOneOf<GemmFp8Kernel, gemm::kFp8Tiles>(args, stream);
  }
}

}  // namespace tandem::kernels::TANDEM_SIMT
