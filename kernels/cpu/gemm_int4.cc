// y = x·wᵀ with four-bit w and int8 x (kernels/api/gemm.h, docs/kernels/gemm.md).
//
//   w[n, k] = s[n, g]·q[n, k] + o[n, g]    q in [0, 15], s and o exact in fp32, g: group of 32 k
//   x[m, k] ≈ t[m, g]·p[m, k]              t[m, g] = max |x[m, k]| / 127 over the same group
//   y[m, n] = Σ_g (s·t)·float(Σ_{k in g} q·p) + o·(t·Σ_{k in g} p)   two FMAs a group, g ascending
// The inner sums are exact in int32, the outer chain is fixed: rows, blocking, threads and class
// cannot change a bit. q is unsigned already, so no sum needs a correction.
// Packed weights: panels of 32 output features, [ceil(N/32)][ceil(K/32)] of {[4][32][4] bytes,
// s[32], o[32] fp16}: one stream of memory, ten lines a group. Byte b of word j of a feature holds
// elements 4j + b (low half) and 16 + 4j + b (high half) of its group: the order of Int4Group.
// kQ4K: [ceil(N/32)][K/256] of {d[32], m[32] fp16, [8] of {[4][32][4] bytes, a[32], b[32] bytes}},
// s = d·a and o = −m·b: products of 11 by 6 bits.
// Bound by bytes of w up to about 12 rows, by dot products and the twelve other operations that
// come with sixteen of them above.
#include "kernels/cpu/gemm_int4.h"

#include "kernels/api/int4_group.h"
#include "kernels/api/require.h"
#include "kernels/cpu/gemm_epilogue.h"
#include "kernels/cpu/gemm_plan.h"
#include "kernels/cpu/int8_rows.h"
#include "kernels/cpu/panel_rows.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int64_t kGroup = kInt4GroupSize;
constexpr int64_t kWordBytes = kPanel * 4;  // one word of each feature
constexpr int64_t kQuantBytes = 4 * kWordBytes;
constexpr int64_t kRowsMax = kHas32Registers ? 6 : 2;
constexpr int64_t kGroupsOfBlock = kQ4KBlockSize / kGroup;

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

// s and o of sixteen features.
struct Factors {
  V16 scale, offset;
};

// The place of a panel's groups, and their factors: features [16 v, + 16).
struct GroupLayout {
  static constexpr int64_t kGroupBytes = kQuantBytes + kPanel * 2 * 2;

  TANDEM_INLINE static int64_t PanelBytes(int64_t k) { return CeilDiv(k, kGroup) * kGroupBytes; }
  TANDEM_INLINE static const char* At(const char* panel, int64_t group) {
    return panel + group * kGroupBytes;
  }
  TANDEM_INLINE static Factors Load(const char* panel, int64_t group, int64_t v) {
    const char* factors = At(panel, group) + kQuantBytes + v * kLanes * 2;
    return {LoadHalves(factors), LoadHalves(factors + kPanel * 2)};
  }
};
struct Q4KLayout {
  static constexpr int64_t kHeaderBytes = kPanel * 2 * 2;
  static constexpr int64_t kGroupBytes = kQuantBytes + kPanel * 2;
  static constexpr int64_t kBlockBytes = kHeaderBytes + kGroupsOfBlock * kGroupBytes;

  TANDEM_INLINE static int64_t PanelBytes(int64_t k) { return k / kQ4KBlockSize * kBlockBytes; }
  TANDEM_INLINE static const char* Block(const char* panel, int64_t group) {
    return panel + group / kGroupsOfBlock * kBlockBytes;
  }
  TANDEM_INLINE static const char* At(const char* panel, int64_t group) {
    return Block(panel, group) + kHeaderBytes + group % kGroupsOfBlock * kGroupBytes;
  }
  TANDEM_INLINE static Factors Load(const char* panel, int64_t group, int64_t v) {
    const char* block = Block(panel, group) + v * kLanes * 2;
    const char* small = At(panel, group) + kQuantBytes + v * kLanes;
    const V16 scale = Mul(LoadHalves(block), FromInt(LoadBytes(small)));
    const V16 least = Mul(LoadHalves(block + kPanel * 2), FromInt(LoadBytes(small + kPanel)));
    return {scale, Sub(Zero(), least)};
  }
};

TANDEM_INLINE int64_t PanelBytes(const MatrixShape& shape) {
  return shape.type == WeightType::kQ4K ? Q4KLayout::PanelBytes(shape.k)
                                        : GroupLayout::PanelBytes(shape.k);
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
  Ahead ahead;
  TilePlace place;
};

// Adds group `group` to sums.
template <typename Layout, int R>
TANDEM_INLINE void AddGroup(const Tile& tile, int64_t group, V16 (&sums)[R][2]) {
  const char* w = Layout::At(tile.w, group);
  const U16 low_half = SetU1(0x0f0f0f0fu);
  U16 acc[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) acc[r][0] = acc[r][1] = SetU1(0);
  const uint8_t* x = tile.x + group * kGroup;
  const char* ahead = tile.ahead.At(w - tile.w);
#pragma GCC unroll 4
  for (int j = 0; j < 4; ++j) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(w + j * kWordBytes);
    const U16 first = LoadU(words), second = LoadU(words + kLanes);
    FetchLinePair(ahead);
    ahead += tile.ahead.step;
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
  FetchLinePair(ahead);
#pragma GCC unroll 2
  for (int v = 0; v < 2; ++v) {
    const auto [scale, offset] = Layout::Load(tile.w, group, v);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const GroupScale& x_scale = tile.x_scales[r * tile.groups + group];
      sums[r][v] = Fma(FromInt(acc[r][v]), Mul(scale, Set1(x_scale.scale)), sums[r][v]);
      sums[r][v] = Fma(offset, Set1(x_scale.total), sums[r][v]);
    }
  }
}

template <typename Layout, int R>
void RunTile(const Tile& tile) {
  V16 sums[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = Zero();
  for (int64_t group = 0; group < tile.groups; ++group) {
    AddGroup<Layout, R>(tile, group, sums);
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    Settle(sums[r][0]);
    Settle(sums[r][1]);
  }
  StoreTile<R>(tile.place, sums);
}

using TileFn = void (*)(const Tile& tile);
template <typename Layout>
constexpr TileFn kTileFns[] = {
    RunTile<Layout, 1>, RunTile<Layout, 2>,
#if defined(__AVX512F__)
    RunTile<Layout, 3>, RunTile<Layout, 4>, RunTile<Layout, 5>, RunTile<Layout, 6>,
#endif
};

TANDEM_INLINE void StoreQuants(const uint8_t (&quants)[16], char* group, int64_t feature) {
  for (int64_t j = 0; j < 4; ++j) {
    __builtin_memcpy(group + j * kWordBytes + feature * 4, quants + j * 4, 4);
  }
}

// Feature `feature` of the panel at `out`.
void PackGroups(const PackRowsArgs& args, int64_t row, int64_t feature, char* out) {
  const int64_t k = args.shape.k, groups = CeilDiv(k, kGroup);
  for (int64_t g = 0; g < groups; ++g, out += GroupLayout::kGroupBytes) {
    Int4Group group = {};  // features that pad a panel
    if (row < args.num_rows && args.groups != nullptr) {
      group = FiniteInt4(args.groups[row * groups + g]);
    } else if (row < args.num_rows) {
      group = RoundToInt4(args.rows + row * k + g * kGroup, Least(kGroup, k - g * kGroup));
    }
    StoreQuants(group.quants, out, feature);
    __builtin_memcpy(out + kQuantBytes + feature * 2, &group.scale, 2);
    __builtin_memcpy(out + kQuantBytes + (kPanel + feature) * 2, &group.offset, 2);
  }
}

void PackQ4K(const PackRowsArgs& args, int64_t row, int64_t feature, char* panel) {
  const int64_t blocks = args.shape.k / kQ4KBlockSize;
  for (int64_t b = 0; b < blocks; ++b) {
    Q4KBlock block = {};
    if (row < args.num_rows) block = FiniteQ4K(args.blocks[row * blocks + b]);
    char* out = panel + b * Q4KLayout::kBlockBytes;
    __builtin_memcpy(out + feature * 2, &block.scale, 2);
    __builtin_memcpy(out + (kPanel + feature) * 2, &block.min, 2);
    out += Q4KLayout::kHeaderBytes;
    for (int64_t g = 0; g < kGroupsOfBlock; ++g, out += Q4KLayout::kGroupBytes) {
      StoreQuants(block.quants[g], out, feature);
      __builtin_memcpy(out + kQuantBytes + feature, &block.scales[g], 1);
      __builtin_memcpy(out + kQuantBytes + kPanel + feature, &block.mins[g], 1);
    }
  }
}

}  // namespace

size_t Int4PackedBytes(const MatrixShape& shape) {
  return static_cast<size_t>(CeilDiv(shape.n, kPanel) * PanelBytes(shape));
}

void Int4PackRows(const PackRowsArgs& args) {
  KERNEL_REQUIRE(args.shape.type != WeightType::kQ4K || args.shape.k % kQ4KBlockSize == 0);
  const auto pack = args.shape.type == WeightType::kQ4K ? PackQ4K : PackGroups;
  ForEachPanelRow(args, PanelBytes(args.shape),
                  [&](int64_t i, int64_t lane, char* panel) { pack(args, i, lane, panel); });
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
  const TileFn* tiles =
      shape.type == WeightType::kQ4K ? kTileFns<Q4KLayout> : kTileFns<GroupLayout>;
  parallel(plan.tasks(), [&](int64_t task, int) {
    RunTask(plan, task, [&](int64_t block, int64_t panel) {
      const int64_t row = plan.Begin(block);
      const char* w = weights + panel * plan.panel_bytes;
      tiles[plan.Rows(block) - 1]({x.bytes + row * x.stride,
                                   x.stride,
                                   x.scales + row * x.groups,
                                   x.groups,
                                   w,
                                   AheadOf(args, plan, w, block),
                                   {&args, row, panel * kPanel}});
    });
  });
}

}  // namespace tandem::kernels::TANDEM_ISA
