// One partition of attention over a bf16 cache by `vdpbf16ps` (kernels/cpu/partition_pass.h,
// docs/kernels/attention.md).
//
//   s[r][t] = Σ q[r][d]·k[t][d]                       16 tokens to a vector, pairs of d ascending;
//                                                     q is scaled by scale·log2 e
//   m[r] = max s,  p[r][t] = 2^(s − m),  l[r] = Σ p   lane t % 16, fixed tree
//   o[r][d] = Σ bf16(p[r][t])·v[t][d]                 16 dimensions to a vector, pairs of tokens
//                                                     ascending
//
// Pairs of tokens are absolute. Where the row's range cuts a pair, the token outside counts as p =
// 0 and v = 0. A vector's operations are the same whichever others share its block.
#include "kernels/api/require.h"
#include "kernels/cpu/partition_pass.h"

#if defined(__AVX512BF16__)

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int32_t kTokens = kPartitionTokens;
constexpr float kMinusInfinity = -__builtin_inff();

struct DotPass {
  const PartitionGroup& group;
  KvView<Bf16> view;
  float* scores;  // [size][kTokens]
  uint16_t* p;    // [size][kTokens], bf16

  TANDEM_INLINE const char* KeyTile(int32_t tile) const {
    const int32_t token = group.first_token + tile * 16;
    return reinterpret_cast<const char*>(view.KeyTile(group.block_table[token / view.block_tokens],
                                                      group.kv_head,
                                                      token % view.block_tokens / 16));
  }
  TANDEM_INLINE const char* ValuePair(int32_t token) const {
    return reinterpret_cast<const char*>(view.Value(group.block_table[token / view.block_tokens],
                                                    group.kv_head, token % view.block_tokens & ~1));
  }
};

// Scores of `R` vectors for NV tiles of 16 tokens.
template <int R, int NV>
TANDEM_INLINE void ScoreTiles(const DotPass& pass, int32_t tile) {
  const char* keys[NV];
  V16 acc[R][NV];
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) keys[v] = pass.KeyTile(tile + v);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = Zero();
  }
  const char* q = static_cast<const char*>(pass.group.q_pairs);
  const int64_t end = static_cast<int64_t>(pass.view.head_dim / 2) * 64;
  const char* ahead = nullptr;
  if constexpr (R <= kStreamingRows) ahead = Ahead(pass.group, keys[0], end * NV);
  for (int64_t at = 0; at < end; at += 64, q += R * 4) {
    Pairs16 k[NV];
    if constexpr (R <= kStreamingRows) {
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) _mm_prefetch(ahead + at * NV + v * 64, _MM_HINT_T1);
    }
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) k[v] = LoadPairs(keys[v] + at);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const Pairs16 pair = BroadcastPair(q + r * 4);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = Dot(pair, k[v], acc[r][v]);
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) Store(pass.scores + r * kTokens + (tile + v) * 16, acc[r][v]);
  }
}

template <int R>
TANDEM_INLINE void ScoreRange(const DotPass& pass, int32_t first_tile, int32_t end_tile) {
  constexpr int kVectors = BlockVectors(R);
  const int64_t tile_bytes = static_cast<int64_t>(pass.view.head_dim) * 32;
  int32_t tile = first_tile;
  for (; tile + kVectors <= end_tile; tile += kVectors) {
    if (R <= kStreamingRows && pass.group.stream == nullptr) {
      const int32_t next = tile + 2 * kVectors <= end_tile ? tile + kVectors : first_tile;
      for (int v = 0; v < kVectors; ++v) {
        Prefetch(pass.KeyTile(next + v), tile_bytes);
        Prefetch(pass.ValuePair(pass.group.first_token + (tile + v) * 16), tile_bytes);
      }
    }
    ScoreTiles<R, kVectors>(pass, tile);
  }
  for (; tile < end_tile; ++tile) ScoreTiles<R, 1>(pass, tile);
}

// Turns the scores of vector r into p, and sets m and l.
TANDEM_INLINE void Softmax(const DotPass& pass, int32_t r) {
  const int32_t begin = pass.group.begin[r], end = pass.group.end[r];
  const int32_t first_tile = begin / 16 * 16, last_tile = (end - 1) / 16 * 16;
  float* s = pass.scores + r * kTokens;
  uint16_t* p = pass.p + r * kTokens;
  // Only the first and the last tile can hold tokens outside the range.
  const auto mask_tile = [&](int32_t t) {
    Store(s + t, Select(LaneRange(begin - t, end - t), Load(s + t), Set1(kMinusInfinity)));
  };
  mask_tile(first_tile);
  mask_tile(last_tile);
  V16 most = Set1(kMinusInfinity);
  for (int32_t t = first_tile; t <= last_tile; t += 16) most = Max(most, Load(s + t));
  const float m = ReduceMax(most);
  V16 sum = Zero();
  for (int32_t t = first_tile; t <= last_tile; t += 16) {
    const V16 weight = Exp2(Sub(Load(s + t), Set1(m)));
    StoreBf16(p + t, weight);
    sum = Add(sum, weight);
  }
  pass.group.m[r] = m;
  pass.group.l[r] = ReduceAdd(sum);
}

// Pairs of tokens [begin, end), even bounds, added to o of `R` vectors from vector `first` on;
// `mask` keeps the tokens of each pair that count.
struct Span {
  int32_t first;
  int32_t begin, end;
  uint32_t mask;
};

template <int R, int NV>
TANDEM_INLINE void AddValueColumns(const DotPass& pass, const Span& span, int32_t column) {
  const int32_t head_dim = pass.view.head_dim, block_tokens = pass.view.block_tokens;
  V16 acc[R][NV];
  float* o = pass.group.o + span.first * head_dim + column;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = Load(o + r * head_dim + v * 16);
  }
  const char* p = reinterpret_cast<const char*>(pass.p + span.first * kTokens + span.begin);
  for (int32_t t = span.begin; t < span.end;) {
    const int32_t token = pass.group.first_token + t;
    const int32_t left = block_tokens - token % block_tokens;
    const int32_t run = left < span.end - t ? left : span.end - t;
    const char* values = pass.ValuePair(token) + column * 4;
    const char* const p_end = p + run * 2;
    const char* ahead = nullptr;
    if constexpr (R <= kStreamingRows) ahead = Ahead(pass.group, values, run * NV * 32);
    for (; p < p_end; p += 4, values += head_dim * 4) {
      Pairs16 v16[NV];
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) v16[v] = LoadPairs(values + v * 64);
      if constexpr (R <= kStreamingRows) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) _mm_prefetch(ahead + v * 64, _MM_HINT_T1);
        ahead += NV * 64;
      }
      if constexpr (R == 1) {
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) v16[v] = AndPairs(v16[v], span.mask);
      }
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const Pairs16 pair = BroadcastPair(p + r * kTokens * 2);
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) acc[r][v] = Dot(pair, v16[v], acc[r][v]);
      }
    }
    t += run;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) Store(o + r * head_dim + v * 16, acc[r][v]);
  }
}

template <int R>
void AddValues(const DotPass& pass, const Span& span) {
  if (span.begin >= span.end) return;
  constexpr int kVectors = BlockVectors(R);
  int32_t column = 0;
  for (; column + kVectors * 16 <= pass.view.head_dim; column += kVectors * 16) {
    AddValueColumns<R, kVectors>(pass, span, column);
  }
  for (; column < pass.view.head_dim; column += 16) AddValueColumns<R, 1>(pass, span, column);
}

// Tokens [begin, end) added to o of vector r: whole pairs, and halves at odd bounds.
void AddRange(const DotPass& pass, int32_t r, int32_t begin, int32_t end) {
  constexpr uint32_t kEvenToken = 0x0000ffffu, kOddToken = 0xffff0000u, kBoth = 0xffffffffu;
  if (begin >= end) return;
  if (begin % 2 != 0) {
    AddValues<1>(pass, {r, begin - 1, begin + 1, kOddToken});
    ++begin;
  }
  AddValues<1>(pass, {r, begin, end / 2 * 2, kBoth});
  if (end % 2 != 0 && begin < end) AddValues<1>(pass, {r, end - 1, end + 1, kEvenToken});
}

template <int R>
void RunGroup(const PartitionGroup& group) {
  alignas(64) float scores[R * kTokens];
  alignas(64) uint16_t p[R * kTokens];
  const DotPass pass = {group, KvView<Bf16>(*group.layer), scores, p};
  auto [any_begin, any_end, all_begin, all_end] = BeginGroup(group, R);
  if (any_begin >= any_end) return;
  ScoreRange<R>(pass, any_begin / 16, (any_end + 15) / 16);
  for (int32_t r = 0; r < R; ++r) {
    if (group.begin[r] >= group.end[r]) continue;
    Softmax(pass, r);
    float* o = group.o + r * pass.view.head_dim;
    for (int32_t d = 0; d < pass.view.head_dim; d += 16) Store(o + d, Zero());
  }
  all_begin = (all_begin + 1) / 2 * 2;
  all_end = all_end / 2 * 2;
  if (all_begin >= all_end) {
    for (int32_t r = 0; r < R; ++r) AddRange(pass, r, group.begin[r], group.end[r]);
    return;
  }
  for (int32_t r = 0; r < R; ++r) AddRange(pass, r, group.begin[r], all_begin);
  AddValues<R>(pass, {0, all_begin, all_end, 0xffffffffu});
  for (int32_t r = 0; r < R; ++r) AddRange(pass, r, all_end, group.end[r]);
}

}  // namespace

void RunPartitionGroupDot(const PartitionGroup& group) {
  static constexpr void (*kStartDecode[])(const PartitionGroup&) = {
      RunGroup<1>, RunGroup<2>, RunGroup<3>, RunGroup<4>,  RunGroup<5>,  RunGroup<6>,
      RunGroup<7>, RunGroup<8>, RunGroup<9>, RunGroup<10>, RunGroup<11>, RunGroup<12>};
  kStartDecode[group.size - 1](group);
}

}  // namespace tandem::kernels::TANDEM_ISA

#endif
