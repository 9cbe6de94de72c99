// One partition of attention over a bf16 cache on tile registers (kernels/cpu/partition_pass.h,
// docs/kernels/attention.md).
//
//   s[r][t] = Σ q[r][d]·k[t][d]                       16 tokens to a tile, steps of 32 d ascending;
//                                                     q is scaled by scale·log2 e
//   m[r] = max s,  p[r][t] = 2^(s − m),  l[r] = Σ p   lane t % 16, fixed tree
//   o[r][d] = Σ bf16(p[r][t])·v[t][d]                 16 dimensions to a tile, steps of 32 tokens
//                                                     ascending
//
// Steps of tokens are absolute. A token that a vector does not attend to has p = 0 there, which
// adds an exact zero where its v is finite. A vector's operations are therefore the same whichever
// others share its group. Tokens that no vector of the group attends to may hold anything, so their
// v counts as 0, too. A vector whose sums meet 0·inf or 0·NaN of a token that only others attend to
// runs again in a group of its own.
//
// Up to 16 vectors are the rows of one tile and meet four tiles of K or V at a time; up to 32 are
// the rows of two tiles and meet two, so that each byte of K and V is loaded for 32 vectors.
//
//              up to 16 vectors     up to 32 vectors
//   q or p     4                    4, 5
//   K or V     5, 6, 7 in turn      6, 7
//   sums       0, 1, 2, 3           0, 1 of tile 4; 2, 3 of tile 5
// Bound by the exponentials for prompts, by bytes of K and V for generation.
#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/partition_pass.h"

#if defined(TANDEM_TILE_CLASS)

namespace tandem::kernels::TANDEM_ISA {
namespace {

constexpr int32_t kTokens = kPartitionTokens;
constexpr int32_t kStep = 32;  // d or tokens of one product
constexpr float kMinusInfinity = -__builtin_inff();

struct TilePass {
  const PartitionGroup& group;
  TileRegisters& tiles;
  KvView<Bf16> view;
  float* scores;               // [size][kTokens]
  uint16_t* p;                 // [size][kTokens], bf16
  int32_t begin = 0, end = 0;  // tokens of the partition that some vector attends to

  TANDEM_INLINE int32_t BlockOf(int32_t token) const {
    return group.block_table[(group.first_token + token) / view.block_tokens];
  }
  TANDEM_INLINE int32_t InBlock(int32_t token) const {
    return (group.first_token + token) % view.block_tokens;
  }
  // K of tokens [token, token + 16): [head_dim / 2] rows of pairs.
  TANDEM_INLINE const char* Keys(int32_t token) const {
    return reinterpret_cast<const char*>(
        view.KeyTile(BlockOf(token), group.kv_head, InBlock(token) / 16));
  }
  // V of the pair of tokens that begins with `token`: [head_dim] pairs.
  TANDEM_INLINE const char* ValuePair(int32_t token) const {
    return reinterpret_cast<const char*>(view.Value(BlockOf(token), group.kv_head, InBlock(token)));
  }
  TANDEM_INLINE int64_t key_bytes() const { return int64_t{view.head_dim} * 32; }
  TANDEM_INLINE int64_t pair_bytes() const { return int64_t{view.head_dim} * 4; }
};

// Tiles of K or V, or of scores, that the products of one step take.
constexpr int Columns(bool two) { return two ? 2 : 4; }

TileConfig ConfigOf(int32_t vectors) {
  const uint8_t first = static_cast<uint8_t>(vectors < 16 ? vectors : 16);
  const uint8_t second = static_cast<uint8_t>(vectors - first);
  const uint8_t one_tile[kTiles] = {first, first, first, first, first, 16, 16, 16};
  const uint8_t two_tiles[kTiles] = {first, first, second, second, first, second, 16, 16};
  TileConfig config;
  for (int t = 0; t < kTiles; ++t) {
    config.rows[t] = second == 0 ? one_tile[t] : two_tiles[t];
    config.row_bytes[t] = kTileRowBytes;
  }
  return config;
}

// Rows of q or p, or 16 rows of pairs of K or V, and the memory that they may lie in.
struct Operand {
  TileMemory<const char> rows;
  MemoryRange range;
};

template <bool kTwo, int NV>
TANDEM_INLINE void ZeroSums(TileRegisters& tiles) {
  tiles.Zero<0>();
  if constexpr (kTwo) tiles.Zero<2>();
  if constexpr (NV == 1) return;
  tiles.Zero<1>();
  if constexpr (!kTwo) tiles.Zero<2>();
  tiles.Zero<3>();
}

// Adds the products of `rows` and each operand to their sums.
template <bool kTwo, int NV>
TANDEM_INLINE void Multiply(TileRegisters& tiles, const Operand& rows,
                            const Operand (&operands)[NV]) {
  tiles.Load<4>(rows.rows, rows.range);
  if constexpr (kTwo) {
    const int64_t stride = rows.rows.stride;
    tiles.Load<6>(operands[0].rows, operands[0].range);
    tiles.DotBf16<0, 4, 6>();
    tiles.Load<5>({rows.rows.first + kTileRows * stride, stride}, rows.range);
    tiles.DotBf16<2, 5, 6>();
    if constexpr (NV > 1) {
      tiles.Load<7>(operands[1].rows, operands[1].range);
      tiles.DotBf16<1, 4, 7>();
      tiles.DotBf16<3, 5, 7>();
    }
    return;
  }
  tiles.Load<5>(operands[0].rows, operands[0].range);
  tiles.DotBf16<0, 4, 5>();
  if constexpr (NV > 3) {
    tiles.Load<6>(operands[1].rows, operands[1].range);
    tiles.DotBf16<1, 4, 6>();
    tiles.Load<7>(operands[2].rows, operands[2].range);
    tiles.DotBf16<2, 4, 7>();
    tiles.Load<5>(operands[3].rows, operands[3].range);
    tiles.DotBf16<3, 4, 5>();
  }
}

// Stores the sums side by side at `to`, rows `stride` bytes apart.
template <bool kTwo, int NV>
TANDEM_INLINE void StoreSums(TileRegisters& tiles, char* to, int64_t stride, int32_t rows) {
  const MemoryRange all = {to, to + (rows - 1) * stride + NV * kTileRowBytes};
  tiles.Store<0>({to, stride}, all);
  if constexpr (NV > 1) tiles.Store<1>({to + kTileRowBytes, stride}, all);
  if constexpr (kTwo) {
    to += kTileRows * stride;
    tiles.Store<2>({to, stride}, all);
    if constexpr (NV > 1) tiles.Store<3>({to + kTileRowBytes, stride}, all);
  } else if constexpr (NV > 1) {
    tiles.Store<2>({to + 2 * kTileRowBytes, stride}, all);
    tiles.Store<3>({to + 3 * kTileRowBytes, stride}, all);
  }
}

// Where the `bytes` bytes lie that the worker's stream requests meanwhile; nullptr: none.
TANDEM_INLINE const char* NextOfStream(const PartitionGroup& group, int64_t bytes) {
  return group.stream == nullptr ? nullptr : group.stream->Next(bytes);
}
TANDEM_INLINE void FetchLines(const char* from, int64_t bytes) {
  if (from == nullptr) return;
  for (int64_t i = 0; i < bytes; i += 64) _mm_prefetch(from + i, _MM_HINT_T1);
}

// Scores of all vectors for NV tiles of 16 tokens from `token` on.
template <bool kTwo, int NV>
TANDEM_INLINE void ScoreTokens(const TilePass& pass, int32_t token) {
  const PartitionGroup& group = pass.group;
  const char* keys[NV];
  for (int v = 0; v < NV; ++v) keys[v] = pass.Keys(token + v * 16);
  const char* ahead = NextOfStream(group, pass.key_bytes() * NV);
  const char* q = static_cast<const char*>(group.q_pairs);
  const int64_t q_stride = PaddedHeadDim(pass.view.head_dim) * 2;
  const MemoryRange q_range = {q, q + group.size * q_stride};
  const int64_t whole = pass.key_bytes() / kTileBytes * kTileBytes;
  ZeroSums<kTwo, NV>(pass.tiles);
  Operand operands[NV];
  int64_t at = 0;
  for (; at < whole; at += kTileBytes, q += kTileRowBytes) {
    FetchLines(ahead, kTileBytes * NV);
    if (ahead != nullptr) ahead += kTileBytes * NV;
    for (int v = 0; v < NV; ++v)
      operands[v] = {{keys[v] + at, kTileRowBytes}, {keys[v], keys[v] + pass.key_bytes()}};
    Multiply<kTwo, NV>(pass.tiles, {{q, q_stride}, q_range}, operands);
  }
  if (at < pass.key_bytes()) {
    // The last sixteen dimensions, and zeros.
    FetchLines(ahead, kTileBytes / 2 * NV);
    alignas(64) char padded[NV][kTileBytes] = {};
    for (int v = 0; v < NV; ++v) {
      __builtin_memcpy(padded[v], keys[v] + at, kTileBytes / 2);
      operands[v] = {{padded[v], kTileRowBytes}, {padded[v], padded[v] + kTileBytes}};
    }
    Multiply<kTwo, NV>(pass.tiles, {{q, q_stride}, q_range}, operands);
  }
  StoreSums<kTwo, NV>(pass.tiles, reinterpret_cast<char*>(pass.scores + token), kTokens * 4,
                      group.size);
}

template <bool kTwo>
TANDEM_INLINE void Score(const TilePass& pass) {
  constexpr int kTokensAtOnce = Columns(kTwo) * 16;
  int32_t token = pass.begin / 16 * 16;
  for (; token + kTokensAtOnce <= pass.end; token += kTokensAtOnce)
    ScoreTokens<kTwo, Columns(kTwo)>(pass, token);
  for (; token < pass.end; token += 16) ScoreTokens<kTwo, 1>(pass, token);
}

// Rounds weights to nearest even. They are in [0, 1], or NaN with a payload of bf16, since K and q
// are bf16; that stays a NaN here.
TANDEM_INLINE void StoreWeights(uint16_t* p, V16 weights) {
  const U16 bits = BitsOf(weights);
  const U16 up = AddU(AndU(ShiftRightU<16>(bits), SetU1(1)), SetU1(0x7fff));
  StoreHalves(p, ShiftRightU<16>(AddU(bits, up)));
}

// The greatest of s[begin, end), whole tiles; four chains, so that they wait less for each other.
TANDEM_INLINE float GreatestOf(const float* s, int32_t begin, int32_t end) {
  V16 most[4];
  for (V16& chain : most) chain = Set1(kMinusInfinity);
  int32_t t = begin;
  for (; t + 64 <= end; t += 64) {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) most[i] = Max(most[i], Load(s + t + i * 16));
  }
  for (; t < end; t += 16) most[0] = Max(most[0], Load(s + t));
  return ReduceMax(Max(Max(most[0], most[1]), Max(most[2], most[3])));
}

// Turns the scores of vector r into p, zero for the tokens of whole steps that it does not attend
// to, and sets m and l.
void Softmax(const TilePass& pass, int32_t r) {
  const int32_t begin = pass.group.begin[r], end = pass.group.end[r];
  float* s = pass.scores + r * kTokens;
  uint16_t* p = pass.p + r * kTokens;
  const int32_t first = pass.begin / kStep * kStep;
  const int32_t last = (pass.end + kStep - 1) / kStep * kStep;
  const int32_t first_tile = begin < end ? begin / 16 * 16 : last;
  const int32_t end_tile = begin < end ? (end + 15) / 16 * 16 : last;
  for (int32_t t = first; t < first_tile; t += 16) StoreBf16(p + t, Zero());
  for (int32_t t = end_tile; t < last; t += 16) StoreBf16(p + t, Zero());
  if (begin >= end) return;
  // Only the first and the last tile can hold tokens outside the range.
  const auto mask_tile = [&](int32_t t) {
    Store(s + t, Select(LaneRange(begin - t, end - t), Load(s + t), Set1(kMinusInfinity)));
  };
  mask_tile(first_tile);
  mask_tile(end_tile - 16);
  const float m = GreatestOf(s, first_tile, end_tile);
  V16 sum = Zero();
#pragma GCC unroll 4
  for (int32_t t = first_tile; t < end_tile; t += 16) {
    const V16 weight = Exp2(Sub(Load(s + t), Set1(m)));
    StoreWeights(p + t, weight);
    sum = Add(sum, weight);
  }
  pass.group.m[r] = m;
  pass.group.l[r] = ReduceAdd(sum);
}

// NV tiles of V's columns for the 32 tokens of a step, where they cannot be read in place: they lie
// in several blocks, or some are tokens that no vector attends to.
template <int NV>
struct CopiedValues {
  alignas(64) char rows[kTileRows][NV * kTileRowBytes];

  TANDEM_INLINE void Fill(const TilePass& pass, int32_t step, int32_t column) {
    for (int32_t i = 0; i < kTileRows; ++i) {
      const int32_t token = step + 2 * i;
      const bool even = token >= pass.begin && token < pass.end;
      const bool odd = token + 1 >= pass.begin && token + 1 < pass.end;
      if (!even && !odd) {
        __builtin_memset(rows[i], 0, sizeof(rows[i]));
        continue;
      }
      __builtin_memcpy(rows[i], pass.ValuePair(token) + column * 4, sizeof(rows[i]));
      if (even && odd) continue;
      uint16_t* halves = reinterpret_cast<uint16_t*>(rows[i]);
      for (size_t j = even ? 1 : 0; j < sizeof(rows[i]) / 2; j += 2) halves[j] = 0;
    }
  }
};

// o of all vectors for NV tiles of 16 dimensions from `column` on.
template <bool kTwo, int NV>
TANDEM_INLINE void AddColumns(const TilePass& pass, int32_t column) {
  const PartitionGroup& group = pass.group;
  const int64_t p_stride = kTokens * 2;
  const char* p = reinterpret_cast<const char*>(pass.p);
  const MemoryRange p_range = {p, p + group.size * p_stride};
  ZeroSums<kTwo, NV>(pass.tiles);
  Operand operands[NV];
  CopiedValues<NV> copied;
  for (int32_t step = pass.begin / kStep * kStep; step < pass.end; step += kStep) {
    const bool in_place =
        pass.view.block_tokens % kStep == 0 && step >= pass.begin && step + kStep <= pass.end;
    const char* values = in_place ? pass.ValuePair(step) + column * 4 : copied.rows[0];
    const int64_t stride = in_place ? pass.pair_bytes() : sizeof(copied.rows[0]);
    if (!in_place) copied.Fill(pass, step, column);
    FetchLines(NextOfStream(group, kTileBytes * NV), kTileBytes * NV);
    const MemoryRange range = {values, values + 15 * stride + NV * kTileRowBytes};
    for (int v = 0; v < NV; ++v) operands[v] = {{values + v * kTileRowBytes, stride}, range};
    Multiply<kTwo, NV>(pass.tiles, {{p + step * 2, p_stride}, p_range}, operands);
  }
  StoreSums<kTwo, NV>(pass.tiles, reinterpret_cast<char*>(group.o + column),
                      int64_t{pass.view.head_dim} * 4, group.size);
}

template <bool kTwo>
void RunGroup(const TilePass& pass) {
  Score<kTwo>(pass);
  for (int32_t r = 0; r < pass.group.size; ++r) Softmax(pass, r);
  constexpr int kColumns = Columns(kTwo);
  int32_t column = 0;
  for (; column + kColumns * 16 <= pass.view.head_dim; column += kColumns * 16)
    AddColumns<kTwo, kColumns>(pass, column);
  for (; column < pass.view.head_dim; column += 16) AddColumns<kTwo, 1>(pass, column);
}

TANDEM_INLINE bool AllFinite(const float* values, int32_t size) {
  V16 sum = Zero();  // x·0 is NaN for infinities and NaN, and 0 for all others
  for (int32_t i = 0; i < size; i += 16) sum = Fma(Load(values + i), Zero(), sum);
  return ReduceAdd(sum) == 0;
}

// Vector r of the group alone.
PartitionGroup OnlyVector(const PartitionGroup& group, int32_t r) {
  const int32_t head_dim = group.layer->shape.head_dim;
  PartitionGroup one = group;
  one.size = 1;
  one.q_pairs = static_cast<const uint16_t*>(group.q_pairs) + r * PaddedHeadDim(head_dim);
  one.begin[0] = group.begin[r];
  one.end[0] = group.end[r];
  one.stream = nullptr;
  one.m = group.m + r;
  one.l = group.l + r;
  one.o = group.o + r * head_dim;
  return one;
}

// Runs each vector again whose output is not finite and that does not attend to all of the group's
// tokens.
void RepeatAlone(const TilePass& pass) {
  const PartitionGroup& group = pass.group;
  const int32_t head_dim = pass.view.head_dim;
  for (int32_t r = 0; r < group.size; ++r) {
    const bool attends = group.begin[r] < group.end[r];
    const bool to_all = group.begin[r] == pass.begin && group.end[r] == pass.end;
    if (!attends || to_all || AllFinite(group.o + r * head_dim, head_dim)) continue;
    RunPartitionGroupTile(OnlyVector(group, r));
  }
}

}  // namespace

void RunPartitionGroupTile(const PartitionGroup& group) {
  alignas(64) float scores[kMaxGroupVectors * kTokens];
  alignas(64) uint16_t p[kMaxGroupVectors * kTokens];
  TilePass pass = {group, group.tiles->registers, KvView<Bf16>(*group.layer), scores, p};
  const AttendedTokens tokens = BeginGroup(group, group.size);
  if (tokens.any_begin >= tokens.any_end) return;
  pass.begin = tokens.any_begin;
  pass.end = tokens.any_end;
  if (group.tiles->rows != group.size) {
    pass.tiles.Configure(ConfigOf(group.size));
    group.tiles->rows = group.size;
  }
  group.size > kTileRows ? RunGroup<true>(pass) : RunGroup<false>(pass);
  if (group.size > 1) RepeatAlone(pass);
}

}  // namespace tandem::kernels::TANDEM_ISA

#endif
