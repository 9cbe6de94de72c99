// y = x·wᵀ with four-bit w and int8 x, see kernels/api/gemm.h and docs/kernels/gemm.md.
//
//   w[n, k] = s[n, g]·q[n, k] + o[n, g]    q in [0, 15], s and o fp16, g: group of 32 k
//   x[m, k] ≈ t[m, g]·p[m, k]              t[m, g] = max |x[m, k]| / 127 over the same group
//   y[m, n] = Σ_g (s·t)·float(Σ_{k in g} q·p) + o·(t·Σ_{k in g} p)   two FMAs a group, g ascending
// The inner sums are exact in int32, the outer chain is fixed: rows, blocking, threads and class
// cannot change a bit. q is unsigned as it is, so nothing has to be taken off.
// Packed weights: panels of 32 output features, [ceil(N/32)][ceil(K/32)] of {[4][32][4] bytes,
// s[32], o[32] fp16}: one stream of memory, ten lines a group. Byte b of word j of a feature holds
// elements 4j + b (low half) and 16 + 4j + b (high half) of its group: the order of Int4Group.
// Bound by bytes of w up to about 12 rows, by dot products and the twelve other operations that
// come with sixteen of them above.
#include "kernels/cpu/gemm_int4.h"

#include "kernels/api/require.h"
#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/gemm_plan.h"
#include "kernels/cpu/int8_rows.h"
#include "kernels/int4_group.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int64_t kGroup = kInt4GroupSize;
constexpr int64_t kWordBytes = kPanel * 4;  // one word of each feature
constexpr int64_t kQuantBytes = 4 * kWordBytes;
constexpr int64_t kGroupBytes = kQuantBytes + kPanel * 2 * 2;
constexpr int64_t kRowsMax = kHas32Registers ? 6 : 2;

TANDEM_INLINE int64_t PanelBytes(const MatrixShape& shape) {
  return CeilDiv(shape.k, kGroup) * kGroupBytes;
}

struct GroupScale {
  float scale;
  float total;  // of x: scale · Σ p

  TANDEM_INLINE static GroupScale From(const RoundedGroup& group) {
    return {group.scale, group.scale * static_cast<float>(group.total)};
  }
};

// R rows by one panel.
struct Tile {
  const uint8_t* x;  // first row
  int64_t x_stride;
  const GroupScale* x_scales;  // first row
  int64_t groups;
  const char* w;  // the panel
  TilePlace place;
};

// Sixteen finite fp16 numbers, exactly.
TANDEM_INLINE V16 LoadHalves(const char* p) {
#if defined(__AVX512F__)
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
#else
  const U16 bits = BitsOf(LoadBf16(reinterpret_cast<const uint16_t*>(p)));
  const U16 magnitude = ShiftRightU<3>(AndU(bits, SetU1(0x7fff0000u)));
  const V16 exact = Mul(FromBits(magnitude), Set1(0x1p112f));
  return FromBits(XorU(BitsOf(exact), AndU(bits, SetU1(0x80000000u))));
#endif
}

// Adds group `group`, whose weights begin at `w`, to sums.
template <int R>
TANDEM_INLINE void AddGroup(const Tile& tile, int64_t group, const char* w, V16 (&sums)[R][2]) {
  const U16 low_half = SetU1(0x0f0f0f0fu);
  U16 acc[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = SetU1(0);
  const uint8_t* x = tile.x + group * kGroup;
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(w + j * kWordBytes);
    const U16 first = LoadU(words), second = LoadU(words + kLanes);
    _mm_prefetch(w + kPrefetchBytes + j * kWordBytes, _MM_HINT_T1);
    _mm_prefetch(w + kPrefetchBytes + j * kWordBytes + 64, _MM_HINT_T1);
    const U16 first_low = AndU(first, low_half), second_low = AndU(second, low_half);
    const U16 first_high = AndU(ShiftRightU<4>(first), low_half);
    const U16 second_high = AndU(ShiftRightU<4>(second), low_half);
    const uint8_t* row = x + 4 * j;
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const U16 low = BroadcastQuad(row), high = BroadcastQuad(row + 16);
      acc[r][0] = DotBytes(first_low, low, acc[r][0]);
      acc[r][1] = DotBytes(second_low, low, acc[r][1]);
      acc[r][0] = DotBytes(first_high, high, acc[r][0]);
      acc[r][1] = DotBytes(second_high, high, acc[r][1]);
      row += tile.x_stride;
    }
  }
  _mm_prefetch(w + kPrefetchBytes + kQuantBytes, _MM_HINT_T1);
  _mm_prefetch(w + kPrefetchBytes + kQuantBytes + 64, _MM_HINT_T1);
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const V16 scale = LoadHalves(w + kQuantBytes + v * kLanes * 2);
    const V16 offset = LoadHalves(w + kQuantBytes + (kPanel + v * kLanes) * 2);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const GroupScale& x_scale = tile.x_scales[r * tile.groups + group];
      sums[r][v] = Fma(FromInt(acc[r][v]), Mul(scale, Set1(x_scale.scale)), sums[r][v]);
      sums[r][v] = Fma(offset, Set1(x_scale.total), sums[r][v]);
    }
  }
}

template <int R>
void RunTile(const Tile& tile) {
  V16 sums[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = Zero();
  for (int64_t group = 0; group < tile.groups; ++group) {
    AddGroup<R>(tile, group, tile.w + group * kGroupBytes, sums);
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    Settle(sums[r][0]);
    Settle(sums[r][1]);
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

}  // namespace

size_t Int4PackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(CeilDiv(shape.n, kPanel) * PanelBytes(shape));
}

void Int4PackRows(const PackRowsArgs& args) {
  const int64_t k = args.shape.k, groups = CeilDiv(k, kGroup);
  const bool last = args.first_row + args.num_rows == args.shape.n;
  const int64_t end =
      last ? CeilDiv(args.shape.n, kPanel) * kPanel : args.first_row + args.num_rows;
  for (int64_t n = args.first_row; n < end; ++n) {
    const int64_t row = n - args.first_row, feature = n % kPanel;
    char* out = static_cast<char*>(args.packed) + n / kPanel * PanelBytes(args.shape);
    for (int64_t g = 0; g < groups; ++g, out += kGroupBytes) {
      Int4Group group = {};  // features that pad a panel
      if (n < args.shape.n && args.groups != nullptr) {
        group = FiniteInt4(args.groups[row * groups + g]);
      } else if (n < args.shape.n) {
        group = RoundToInt4(args.rows + row * k + g * kGroup, Least(kGroup, k - g * kGroup));
      }
      for (int64_t j = 0; j < 4; ++j) {
        __builtin_memcpy(out + j * kWordBytes + feature * 4, group.quants + j * 4, 4);
      }
      __builtin_memcpy(out + kQuantBytes + feature * 2, &group.scale, 2);
      __builtin_memcpy(out + kQuantBytes + (kPanel + feature) * 2, &group.offset, 2);
    }
  }
}

void Int4Gemm(const GemmArgs& args, const ParallelFor& parallel) {
  const MatrixShape& shape = args.w.shape;
  KERNEL_REQUIRE(args.x != nullptr && args.scratch != nullptr);
  KERNEL_REQUIRE(args.gated_bf16 == nullptr);
  KERNEL_REQUIRE(args.gated == nullptr || (shape.n % kPanel == 0 && args.bias == nullptr));
  const QuantisedRows<GroupScale, kGroup, kGroup> x(args);
  x.Fill(args, parallel);
  const Plan plan = MakePlan(
      args,
      {.rows_max = kRowsMax, .panel_bytes = PanelBytes(shape), .few_blocks = 12, .task_blocks = 4});
  const char* weights = static_cast<const char*>(args.w.data);
  parallel(plan.tasks(), [&](int64_t task, int) {
    RunTask(plan, task, [&](int64_t block, int64_t panel) {
      const int64_t row = plan.Begin(block);
      kTileFns[plan.Rows(block) - 1]({x.bytes + row * x.stride,
                                      x.stride,
                                      x.scales + row * x.groups,
                                      x.groups,
                                      weights + panel * plan.panel_bytes,
                                      {&args, row, panel * kPanel}});
    });
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
