// One partition of attention for a block of query vectors (partition_pass.h).
//
//   s[r][t] = Σ_d q[r][d]·k[t][d]                     16 tokens to a vector, d ascending
//   m[r] = max s,  p[r][t] = e^(s − m),  l[r] = Σ p   lane t % 16 of the absolute token, fixed tree
//   o[r][d] = Σ_t p[r][t]·v[t][d]                     16 dimensions to a vector, t ascending
//
// A vector's operations are the same whichever others share its block: scores are per-lane chains,
// and the rest runs over the vector's own range, in pieces where ranges differ.
#include "kernels/cpu/partition_pass.h"

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int32_t kTokens = kPartitionTokens;
constexpr float kMinusInfinity = -__builtin_inff();

template <typename T>
struct Pass {
  const PartitionGroup& group;
  KvView<T> view;
  float* scores;  // [size][kTokens]: s, then p

  TANDEM_INLINE const T* KeyTile(int32_t tile) const {
    const int32_t token = group.first_token + tile * 16;
    return view.KeyTile(group.block_table[token / view.block_tokens], group.kv_head,
                        token % view.block_tokens / 16);
  }
};

// Scores of `R` vectors for NV tiles of 16 tokens.
template <int R, int NV, typename T>
TANDEM_INLINE void ScoreTiles(const Pass<T>& pass, int32_t tile) {
  const T* keys[NV];
  V16 acc[R][NV];
#pragma GCC unroll 8
  for (int v = 0; v < NV; ++v) keys[v] = pass.KeyTile(tile + v);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = Zero();
  }
  FmaBlock<R, NV, R, 1>(pass.group.q, keys, 16, pass.view.head_dim, acc);
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) Store(pass.scores + r * kTokens + (tile + v) * 16, acc[r][v]);
  }
}

// Turns the scores of vector r into p, and sets m and l.
TANDEM_INLINE void Softmax(const PartitionGroup& group, int32_t r, float* s) {
  const int32_t begin = group.begin[r], end = group.end[r];
  const int32_t first_tile = begin / 16 * 16;
  V16 most = Set1(kMinusInfinity);
  for (int32_t t = first_tile; t < end; t += 16) {
    V16 masked = Select(LaneRange(begin - t, end - t), Load(s + t), Set1(kMinusInfinity));
    Store(s + t, masked);
    most = Max(most, masked);
  }
  const float m = ReduceMax(most);
  V16 sum = Zero();
  for (int32_t t = first_tile; t < end; t += 16) {
    V16 p = Exp(Sub(Load(s + t), Set1(m)));
    Store(s + t, p);
    sum = Add(sum, p);
  }
  group.m[r] = m;
  group.l[r] = ReduceAdd(sum);
}

// Tokens [begin, end) of the partition added to o of `R` vectors, first being vector `first`.
struct Span {
  int32_t first;
  int32_t begin, end;
};

template <int R, int NV, typename T>
TANDEM_INLINE void AddValueColumns(const Pass<T>& pass, const Span& span, int32_t column) {
  const int32_t head_dim = pass.view.head_dim, block_tokens = pass.view.block_tokens;
  V16 acc[R][NV];
  float* o = pass.group.o + span.first * head_dim + column;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) acc[r][v] = Load(o + r * head_dim + v * 16);
  }
  for (int32_t t = span.begin; t < span.end;) {
    const int32_t token = pass.group.first_token + t;
    const int32_t in_block = token % block_tokens;
    const int32_t run =
        block_tokens - in_block < span.end - t ? block_tokens - in_block : span.end - t;
    const T* values[NV];
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) {
      values[v] = pass.view.Value(pass.group.block_table[token / block_tokens], pass.group.kv_head,
                                  in_block) +
                  column + v * 16;
    }
    FmaBlock<R, NV, 1, kTokens>(pass.scores + span.first * kTokens + t, values, head_dim, run, acc);
    t += run;
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < NV; ++v) Store(o + r * head_dim + v * 16, acc[r][v]);
  }
}

template <int R, typename T>
void AddValues(const Pass<T>& pass, const Span& span) {
  if (span.begin >= span.end) return;
  constexpr int kVectors = BlockVectors(R);
  int32_t column = 0;
  for (; column + kVectors * 16 <= pass.view.head_dim; column += kVectors * 16) {
    AddValueColumns<R, kVectors>(pass, span, column);
  }
  for (; column < pass.view.head_dim; column += 16) AddValueColumns<R, 1>(pass, span, column);
}

template <int R, typename T>
void ScoreRange(const Pass<T>& pass, int32_t first_tile, int32_t end_tile) {
  constexpr int kVectors = BlockVectors(R);
  int32_t tile = first_tile;
  for (; tile + kVectors <= end_tile; tile += kVectors) ScoreTiles<R, kVectors>(pass, tile);
  for (; tile < end_tile; ++tile) ScoreTiles<R, 1>(pass, tile);
}

template <int R, typename T>
void RunGroup(const PartitionGroup& group) {
  alignas(64) float scores[R * kTokens];
  const Pass<T> pass = {group, KvView<T>(*group.layer), scores};
  auto [any_begin, any_end, all_begin, all_end] = BeginGroup(group, R);
  if (any_begin >= any_end) return;
  ScoreRange<R>(pass, any_begin / 16, (any_end + 15) / 16);
  for (int32_t r = 0; r < R; ++r) {
    if (group.begin[r] >= group.end[r]) continue;
    Softmax(group, r, scores + r * kTokens);
    float* o = group.o + r * pass.view.head_dim;
    for (int32_t d = 0; d < pass.view.head_dim; d += 16) Store(o + d, Zero());
  }
  if (all_begin >= all_end) {
    for (int32_t r = 0; r < R; ++r) AddValues<1>(pass, {r, group.begin[r], group.end[r]});
    return;
  }
  for (int32_t r = 0; r < R; ++r) AddValues<1>(pass, {r, group.begin[r], all_begin});
  AddValues<R>(pass, {0, all_begin, all_end});
  for (int32_t r = 0; r < R; ++r) AddValues<1>(pass, {r, all_end, group.end[r]});
}

template <typename T>
void Run(const PartitionGroup& group) {
  static constexpr void (*kStartDecode[])(const PartitionGroup&) = {
    RunGroup<1, T>,
    RunGroup<2, T>,
    RunGroup<3, T>,
    RunGroup<4, T>,
    RunGroup<5, T>,
    RunGroup<6, T>,
#if defined(__AVX512F__)
    RunGroup<7, T>,
    RunGroup<8, T>,
    RunGroup<9, T>,
    RunGroup<10, T>,
    RunGroup<11, T>,
    RunGroup<12, T>,
#endif
  };
  kStartDecode[group.size - 1](group);
}

}  // namespace

void RunPartitionGroup(const PartitionGroup& group) {
  if (group.layer->shape.type == KvType::kF32) {
    Run<float>(group);
  } else {
    Run<Bf16>(group);
  }
}

}  // namespace tandem::kernels::TANDEM_ISA
