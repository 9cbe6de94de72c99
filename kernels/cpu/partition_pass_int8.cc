// One partition of attention over an int8 cache (kernels/cpu/partition_pass.h,
// docs/kernels/attention.md).
//
//   s[r][t] = float(Σ_d qq[r][d]·kq[t][d])·(sq[r]·sk[t])      exact sums of int8 products
//   m[r] = max s,  p[r][t] = e^(s − m),  l[r] = Σ p           lane t % 16, fixed tree
//   w[r][t] = p[r][t]·sv[t],  c[r] = max_t w / 32767,  wq = w / c to the nearest integer
//   o[r][d] = float(Σ_t wq[r][t]·vq[t][d])·c[r]               exact sums again
//
// Both sums are integers below 2^31 whatever the inputs, so neither order nor class changes a bit:
// tokens outside a row's range count as wq = 0. A vector's operations are the same whichever others
// share its block.
#include "kernels/cpu/int8_cache.h"
#include "kernels/cpu/int8_dot.h"
#include "kernels/cpu/partition_pass.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int32_t kTokens = kPartitionTokens;
constexpr float kMinusInfinity = -__builtin_inff();
constexpr float kWeightMax = 32767.0f;

struct Int8Pass {
  const PartitionGroup& group;
  Int8View view;
  float* scores;      // [size][kTokens]: s, then p·sv
  uint16_t* weights;  // [size][kTokens]: wq
  float* factors;     // [size]: c

  TANDEM_INLINE Int8Tile Tile(int32_t tile, int32_t which) const {
    const int32_t token = group.first_token + tile * 16;
    return view.Tile(group.block_table[token / view.block_tokens], group.kv_head, which,
                     token % view.block_tokens / 16);
  }
};

// Scores of `R` vectors for NV tiles of 16 tokens.
template <int R, int NV>
TANDEM_INLINE void ScoreTiles(const Int8Pass& pass, int32_t tile) {
  const int32_t quads = pass.view.head_dim / 4;
  const uint32_t* q = static_cast<const uint32_t*>(pass.group.q_pairs);
  const float* q_scales = reinterpret_cast<const float*>(q + quads * R);
  const uint32_t* corrections = q + quads * R + R;
  Int8Tile keys[NV];
  U16 acc[R][NV];
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) keys[v] = pass.Tile(tile + v, 0);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = SetU1(corrections[r]);
  }
  const char* ahead = nullptr;
  if constexpr (R <= kStreamingRows) {
    ahead = Ahead(pass.group, keys[0].bytes, pass.view.tile_bytes * NV);
  }
  for (int32_t i = 0; i < quads; ++i, q += R) {
    U16 k[NV];
    if constexpr (R <= kStreamingRows) {
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) _mm_prefetch(ahead + v * 64, _MM_HINT_T1);
      ahead += NV * 64;
    }
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v)
      k[v] = LoadU(reinterpret_cast<const uint32_t*>(keys[v].bytes) + i * 16);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const U16 quad = SetU1(q[r]);
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) acc[r][v] = DotBytes(k[v], quad, acc[r][v]);
    }
  }
  if constexpr (R <= kStreamingRows) Prefetch(ahead, NV * 64);  // a tile's scales
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) {
    const V16 k_scale = Load(keys[v].scales);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      Settle(acc[r][v]);
      Store(pass.scores + r * kTokens + (tile + v) * 16,
            Mul(FromInt(acc[r][v]), Mul(Set1(q_scales[r]), k_scale)));
    }
  }
}

template <int R>
TANDEM_INLINE void ScoreRange(const Int8Pass& pass, int32_t first_tile, int32_t end_tile) {
  constexpr int kVectors = BlockVectors(R);
  int32_t tile = first_tile;
  for (; tile + kVectors <= end_tile; tile += kVectors) {
    if (R <= kStreamingRows && pass.group.stream == nullptr) {
      const int32_t next = tile + 2 * kVectors <= end_tile ? tile + kVectors : first_tile;
      for (int v = 0; v < kVectors; ++v) {
        Prefetch(pass.Tile(next + v, 0).bytes, pass.view.tile_bytes);
        Prefetch(pass.Tile(tile + v, 1).bytes, pass.view.tile_bytes);
      }
    }
    ScoreTiles<R, kVectors>(pass, tile);
  }
  for (; tile < end_tile; ++tile) ScoreTiles<R, 1>(pass, tile);
}

// Turns the scores of vector r into weights for tiles [first, end), and sets m, l and c.
TANDEM_INLINE void Softmax(const Int8Pass& pass, int32_t r, int32_t first_tile, int32_t end_tile) {
  const int32_t begin = pass.group.begin[r], end = pass.group.end[r];
  float* s = pass.scores + r * kTokens;
  V16 most = Set1(kMinusInfinity);
  for (int32_t t = first_tile * 16; t < end_tile * 16; t += 16) {
    const V16 masked = Select(LaneRange(begin - t, end - t), Load(s + t), Set1(kMinusInfinity));
    Store(s + t, masked);
    most = Max(most, masked);
  }
  const float m = ReduceMax(most);
  V16 sum = Zero(), heaviest = Zero();
  for (int32_t tile = first_tile; tile < end_tile; ++tile) {
    const int32_t t = tile * 16;
    const V16 p = Exp(Sub(Load(s + t), Set1(m)));
    sum = Add(sum, p);
    // A token outside the range may lie in memory that was never written, so do not read its scale.
    const Mask16 inside = LaneRange(begin - t, end - t);
    const V16 weight = Mul(p, Select(inside, Load(pass.Tile(tile, 1).scales), Zero()));
    Store(s + t, weight);
    heaviest = Max(heaviest, weight);
  }
  const float heaviest_weight = ReduceMax(heaviest);
  const float factor = heaviest_weight > 1e-30f ? kWeightMax / heaviest_weight : 0.0f;
  for (int32_t t = first_tile * 16; t < end_tile * 16; t += 16) {
    const V16 scaled = Min(RoundNearest(Mul(Load(s + t), Set1(factor))), Set1(kWeightMax));
    StoreHalves(pass.weights + r * kTokens + t, ToInt(scaled));
  }
  pass.group.m[r] = m;
  pass.group.l[r] = ReduceAdd(sum);
  pass.factors[r] = heaviest_weight > 1e-30f ? heaviest_weight / kWeightMax : 0.0f;
}

template <int R, int NV>
TANDEM_INLINE void ValueColumns(const Int8Pass& pass, int32_t first_tile, int32_t end_tile,
                                int32_t column) {
  const int32_t head_dim = pass.view.head_dim;
  U16 acc[R][NV];
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = SetU1(0);
  }
  for (int32_t tile = first_tile; tile < end_tile; ++tile) {
    const uint8_t* values = pass.Tile(tile, 1).bytes + column * 2;
    const uint16_t* w = pass.weights + tile * 16;
    if (R <= kStreamingRows && pass.group.stream != nullptr) {
      const int64_t bytes = pass.view.tile_bytes * NV * 16 / head_dim / 64 * 64;
      const char* ahead = pass.group.stream->Next(bytes);
      if (ahead != nullptr) Prefetch(ahead, bytes);
    }
    for (int32_t pair = 0; pair < 8; ++pair, values += head_dim * 2, w += 2) {
      U16 wide[NV];
#pragma GCC unroll 8
      for (int v = 0; v < NV; ++v) wide[v] = LoadInt8AsHalves(values + v * 32);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const U16 both = BroadcastQuad(w + r * kTokens);
#pragma GCC unroll 8
        for (int v = 0; v < NV; ++v) acc[r][v] = DotHalves(both, wide[v], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
    const V16 factor = Set1(pass.factors[r]);
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      Settle(acc[r][v]);
      Store(pass.group.o + r * head_dim + column + v * 16, Mul(FromInt(acc[r][v]), factor));
    }
  }
}

template <int R>
void RunGroup(const PartitionGroup& group) {
  alignas(64) float scores[R * kTokens];
  alignas(64) uint16_t weights[R * kTokens];
  float factors[R] = {};
  const Int8Pass pass = {group, Int8View(*group.layer), scores, weights, factors};
  const AttendedTokens range = BeginGroup(group, R);
  if (range.any_begin >= range.any_end) return;
  const int32_t first_tile = range.any_begin / 16, end_tile = (range.any_end + 15) / 16;
  ScoreRange<R>(pass, first_tile, end_tile);
  for (int32_t r = 0; r < R; ++r) {
    if (group.begin[r] < group.end[r]) {
      Softmax(pass, r, first_tile, end_tile);
    } else {
      for (int32_t t = first_tile * 16; t < end_tile * 16; ++t) weights[r * kTokens + t] = 0;
    }
  }
  constexpr int kVectors = BlockVectors(R);
  int32_t column = 0;
  for (; column + kVectors * 16 <= pass.view.head_dim; column += kVectors * 16) {
    ValueColumns<R, kVectors>(pass, first_tile, end_tile, column);
  }
  for (; column < pass.view.head_dim; column += 16) {
    ValueColumns<R, 1>(pass, first_tile, end_tile, column);
  }
}

}  // namespace

void RunPartitionGroupInt8(const PartitionGroup& group) {
  static constexpr void (*kStartDecode[])(const PartitionGroup&) = {
    RunGroup<1>,
    RunGroup<2>,
    RunGroup<3>,
    RunGroup<4>,
    RunGroup<5>,
    RunGroup<6>,
#if defined(__AVX512F__)
    RunGroup<7>,
    RunGroup<8>,
    RunGroup<9>,
    RunGroup<10>,
    RunGroup<11>,
    RunGroup<12>,
#endif
  };
  kStartDecode[group.size - 1](group);
}

}  // namespace tandem::kernels::TANDEM_ISA
