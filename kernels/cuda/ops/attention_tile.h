// The inner body of attention: 16 query vectors of one warp against 32 tokens of K and V in shared
// memory, the state of a partition, and how partitions merge. Prefill and decode run this one body,
// so a row has the same bits as a prompt row and as a generated one.
//
//   S = q·Kᵀ·scale·log₂e   m16n8k16, head_dim ascending
//   m' = max(m, row max of S);  p = 2^(S − m');  l ← l·2^(m − m') + Σ p;  o ← o·2^(m − m') + p·V
// Sub-tiles lie at multiples of 32 tokens of the sequence. A sub-tile in which a row attends to no
// token leaves that row's m, l and o unchanged, to the bit, so rows of a tile do not affect each
// other. A row of S is summed four tokens at a time in each lane; the four lanes of a quad add up
// at the end of a partition. Every product and sum is rounded on its own (Mul, Add): no compiler
// may contract them differently in two kernels.
//
// A cache of int8 or fp8 stays in bytes up to the registers. Its codes are exact in bf16, so K
// loses no precision: a token's scale multiplies its score. V's scale multiplies p before p is
// rounded to bf16. A matrix load delivers four bytes in another order than operands need, so within
// 16 elements of head_dim the code permutes q, and o's columns come out permuted (ValuesOf).
// Thread safety: device functions, called by all threads of a warp together.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/cuda/ops/attention_work.h"
#include "kernels/cuda/simt/byte_codes.h"
#include "kernels/cuda/simt/simt.h"
#include "kernels/cuda/simt/swizzle.h"

namespace tandem::kernels::TANDEM_SIMT {

inline constexpr int kSubTileTokens = 32;
inline constexpr int kSubTilesPerPartition = kPartitionTokens / kSubTileTokens;

// −infinity as a constant that both compilers accept.
TANDEM_DEVICE float MinusInfinity() { return BitsToFloat(0xff800000u); }
// The number that is subtracted from exponents: the maximum, or 0 before the row has attended to
// any token.
TANDEM_DEVICE float Anchor(float m) { return m == MinusInfinity() ? 0.0f : m; }

// The factors by which a merge multiplies each of two partitions.
struct MergeFactors {
  float m, a, b;
};
TANDEM_DEVICE MergeFactors FactorsOf(float m_a, float m_b) {
  const float m = Max(m_a, m_b);
  const float anchor = Anchor(m);
  return {m, Exp2(Add(m_a, -anchor)), Exp2(Add(m_b, -anchor))};
}
// An FMA, so that a fold of many partitions waits for one instruction at each
// (attention_merge.cu).
TANDEM_DEVICE float MergeValue(const MergeFactors& f, float a, float b) {
  return Fma(a, f.a, Mul(b, f.b));
}

// One number for each of the eight tokens of a sub-tile that a lane holds scores of: [n][i] is of
// token n·8 + 2·(lane % 4) + i.
struct TokenFactors {
  float of[4][2];

  TANDEM_DEVICE static TokenFactors All(float factor) {
    TokenFactors all;
#pragma unroll
    for (int n = 0; n < 4; ++n) all.of[n][0] = all.of[n][1] = factor;
    return all;
  }
  TANDEM_DEVICE TokenFactors Times(const TokenFactors& others) const {
    TokenFactors product;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) product.of[n][i] = Mul(others.of[n][i], of[n][i]);
    }
    return product;
  }
};

// Two neighbouring columns of a row of o.
struct ColumnPair {
  int column;
  float low, high;
};

// A warp's share of a tile: 16 query vectors, kColumns of head_dim. Lane i holds rows i/4 and
// i/4 + 8, in each group of eight columns the two at 2·(i % 4).
template <int kHeadDim, int kColumns, KvType kType>
struct WarpTile {
  static constexpr int kChunks = kHeadDim / 8;  // 16-byte chunks of a row of q
  static constexpr bool kCodes = HasKvScales(kType);
  static constexpr int kKvChunks = kCodes ? kHeadDim / 16 : kChunks;  // of a row of K or V
  static constexpr int kGroups = kColumns / 8;

  float o[kGroups][4];
  float m[2], l[2];
  TokenRange range[2];
  TokenRange common;  // tokens that all of the warp's vectors attend to

  // The warp's vectors are the 16 from `first` on. Those beyond the tile's last get its range, so
  // that they make no token less common. Their results are stored nowhere.
  TANDEM_DEVICE void SetRanges(const AttentionWork& work, int first) {
    const auto range_of = [&work](int vector) {
      return work.RangeOf(vector < work.end_vector ? vector : work.end_vector - 1);
    };
    range[0] = range_of(first + LaneIndex() / 4);
    range[1] = range_of(first + LaneIndex() / 4 + 8);
    common = {range_of(first + 15).begin, range_of(first).end};
  }

  // The lane, for addresses in shared memory. Where registers are scarcest, addresses of q and of V
  // are computed for each sub-tile: kept, they would spill.
  TANDEM_DEVICE static int LaneForAddresses() {
    return kHeadDim == 256 && !kCodes ? Recomputed(LaneIndex()) : LaneIndex();
  }

  TANDEM_DEVICE void Reset() {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[g][e] = 0;
    }
    m[0] = m[1] = MinusInfinity();
    l[0] = l[1] = 0;
  }

  // Scores of a sub-tile's tokens, without any scale: `q` and `keys` are tiles in shared memory,
  // q's of 16 rows.
  TANDEM_DEVICE void Score(const char* q, const char* keys, float s[4][4]) const {
    const int lane = LaneForAddresses();
#pragma unroll
    for (int n = 0; n < 4; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      uint32_t a[4];
      LoadMatrix4(a, q + SwizzledOffset<kChunks>(lane % 16, step * 2 + lane / 16));
      if constexpr (kCodes) {
        ScoreCodes(keys, step, a, s);
      } else {
        ScoreBf16(keys, step, a, s);
      }
    }
  }

  // s += `a` times one step of 16 elements of head_dim of the sub-tile's four groups of tokens.
  TANDEM_DEVICE static void ScoreBf16(const char* keys, int step, const uint32_t a[4],
                                      float s[4][4]) {
    const int lane = LaneIndex();
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const int token = n * 8 + lane / 16 * 8 + lane % 8;
      uint32_t b[4];
      LoadMatrix4(b, keys + SwizzledOffset<kKvChunks>(token, step * 2 + lane / 8 % 2));
      Mma(s[n], a, b);
      Mma(s[n + 1], a, b + 2);
    }
  }
  TANDEM_DEVICE static void ScoreCodes(const char* keys, int step, const uint32_t a[4],
                                       float s[4][4]) {
    uint32_t codes[4];
    LoadMatrix4(codes, keys + SwizzledOffset<kKvChunks>(LaneIndex(), step));
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      uint32_t b[2];
      WidenCodes<kType>(codes[n], b);
      Mma(s[n], a, b);
    }
  }

  // Numbers of 16 vectors and 32 tokens, times each token's factor.
  TANDEM_DEVICE static void ScaleTokens(const TokenFactors& factors, float x[4][4]) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[n][e] = Mul(x[n][e], factors.of[n][e % 2]);
    }
  }

  TANDEM_DEVICE static int TokenOf(int first_token, int n, int i) {
    return first_token + n * 8 + LaneIndex() % 4 * 2 + i;
  }
  // Scores of tokens [first_token, + 32) outside of a row's range become −infinity.
  TANDEM_DEVICE void Mask(int first_token, float s[4][4]) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (!range[e / 2].Has(TokenOf(first_token, n, e % 2), 1)) s[n][e] = MinusInfinity();
      }
    }
  }
  // Factors of tokens that neither row attends to become 0, as p is there: they may be anything.
  TANDEM_DEVICE void ClearUnattended(int first_token, TokenFactors* factors) const {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = TokenOf(first_token, n, i);
        if (!range[0].Has(token, 1) && !range[1].Has(token, 1)) factors->of[n][i] = 0;
      }
    }
  }

  // Turns scores into p and updates m and l. Returns in factor[2] the numbers to multiply o by.
  TANDEM_DEVICE void Softmax(float s[4][4], float factor[2]) {
    float most[2] = {m[0], m[1]};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) most[e / 2] = Max(most[e / 2], s[n][e]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = Max(most[h], ShuffleXor(most[h], 1));
      most[h] = Max(most[h], ShuffleXor(most[h], 2));
      const float anchor = Anchor(most[h]);
      factor[h] = Exp2(Add(m[h], -anchor));
      float sum = 0;
#pragma unroll
      for (int n = 0; n < 4; ++n) {
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) {
          s[n][e] = Exp2(Add(s[n][e], -anchor));
          sum = Add(sum, s[n][e]);
        }
      }
      l[h] = Add(Mul(l[h], factor[h]), sum);
      m[h] = most[h];
    }
  }

  // o ← o·factor + p·V, this warp's columns beginning at column `first_column` of V's rows.
  TANDEM_DEVICE void AddValues(const char* values, int first_column, const float p[4][4],
                               const float factor[2]) {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[g][e] = Mul(o[g][e], factor[e / 2]);
    }
    if constexpr (kCodes) {
      AddCodes(values, first_column / 16, p);
    } else {
      AddBf16(values, first_column / 8, p);
    }
  }

  // p of 16 tokens as an operand.
  TANDEM_DEVICE static void PackWeights(const float p[4][4], int step, uint32_t a[4]) {
    a[0] = PackBf16(p[2 * step][0], p[2 * step][1]);
    a[1] = PackBf16(p[2 * step][2], p[2 * step][3]);
    a[2] = PackBf16(p[2 * step + 1][0], p[2 * step + 1][1]);
    a[3] = PackBf16(p[2 * step + 1][2], p[2 * step + 1][3]);
  }

  TANDEM_DEVICE void AddBf16(const char* values, int first_chunk, const float p[4][4]) {
    const int lane = LaneForAddresses();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
      PackWeights(p, step, a);
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        const int token = step * 16 + lane % 16;
        uint32_t b[4];
        LoadMatrix4Transposed(
            b, values + SwizzledOffset<kKvChunks>(token, first_chunk + g + lane / 16));
        Mma(o[g], a, b);
        Mma(o[g + 1], a, b + 2);
      }
    }
  }

  TANDEM_DEVICE void AddCodes(const char* values, int first_chunk, const float p[4][4]) {
    const int lane = LaneIndex();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
      PackWeights(p, step, a);
#pragma unroll
      for (int g = 0; g < kGroups; g += 4) {
        uint32_t codes[4];
        const int chunk = first_chunk + g / 2 + (kGroups > 2 ? lane / 16 : 0);
        LoadMatrix4Transposed(codes,
                              values + SwizzledOffset<kKvChunks>(step * 16 + lane % 16, chunk));
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (g + 2 * i >= kGroups) continue;
          uint32_t first[2], second[2];  // tokens 0 to 7 and 8 to 15 of the step: even, odd columns
          WidenCodes<kType>(codes[2 * i], first);
          WidenCodes<kType>(codes[2 * i + 1], second);
          const uint32_t even[2] = {first[0], second[0]}, odd[2] = {first[1], second[1]};
          Mma(o[g + 2 * i], a, even);
          Mma(o[g + 2 * i + 1], a, odd);
        }
      }
    }
  }

  // Pair `i` of kGroups of a row (h: this lane's first or second): columns count from this warp's.
  TANDEM_DEVICE ColumnPair ValuesOf(int i, int h) const {
    const int quad = LaneIndex() % 4;
    if constexpr (kCodes) {
      const int g = i / 2 * 2, e = 2 * h + i % 2;
      return {g * 8 + quad * 4 + i % 2 * 2, o[g][e], o[g + 1][e]};
    } else {
      return {i * 8 + quad * 2, o[i][2 * h], o[i][2 * h + 1]};
    }
  }

  // Sums l over the lanes that share a row. Called once, at the end of a partition.
  TANDEM_DEVICE void FinishPartition() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      l[h] = Add(l[h], ShuffleXor(l[h], 1));
      l[h] = Add(l[h], ShuffleXor(l[h], 2));
    }
  }

  // Merges `later`, the next partition, into this.
  TANDEM_DEVICE void Merge(const WarpTile& later) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const MergeFactors f = FactorsOf(m[h], later.m[h]);
      m[h] = f.m;
      l[h] = MergeValue(f, l[h], later.l[h]);
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
#pragma unroll
        for (int e = 2 * h; e < 2 * h + 2; ++e) o[g][e] = MergeValue(f, o[g][e], later.o[g][e]);
      }
    }
  }
};

}  // namespace tandem::kernels::TANDEM_SIMT
