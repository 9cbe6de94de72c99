// The inner body of attention: 16 query vectors of one warp against 32 tokens of K and V in shared
// memory, the state of a partition, and how partitions merge. Prefill and decode run this one body,
// so a row has the same bits as a prompt row and as a generated one.
//
//   S = q·Kᵀ·scale·log₂e   m16n8k16, head_dim ascending
//   m' = max(m, row max of S);  p = 2^(S − m');  l ← l·2^(m − m') + Σ p;  o ← o·2^(m − m') + p·V
// Sub-tiles lie at multiples of 32 tokens of the sequence. One in which a row attends to nothing
// leaves that row's m, l and o as they were, to the bit, so rows of a tile do not touch each other.
// Sums over a row of S: four tokens' worth in each lane, lanes of a quad at the end of a partition.
// Every product and sum on the way is rounded on its own (Mul, Add): no compiler may contract them
// differently in two kernels.
#pragma once

#include "kernels/api/device_ops.h"
#include "kernels/cuda/device/simt.h"
#include "kernels/cuda/device/swizzle.h"

namespace tandem::kernels::TANDEM_SIMT {

inline constexpr int kSubTileTokens = 32;
inline constexpr int kSubTilesPerPartition = kPartitionTokens / kSubTileTokens;

// −infinity as a constant both compilers take.
TANDEM_DEVICE float MinusInfinity() { return BitsToFloat(0xff800000u); }
// What exponents are taken relative to: the maximum, or 0 while nothing was attended to.
TANDEM_DEVICE float Anchor(float m) { return m == MinusInfinity() ? 0.0f : m; }

// What merging two partitions multiplies each by.
struct MergeFactors {
  float m, a, b;
};
TANDEM_DEVICE MergeFactors FactorsOf(float m_a, float m_b) {
  const float m = Max(m_a, m_b);
  const float anchor = Anchor(m);
  return {m, Exp2(Add(m_a, -anchor)), Exp2(Add(m_b, -anchor))};
}
TANDEM_DEVICE float MergeValue(const MergeFactors& f, float a, float b) {
  return Add(Mul(a, f.a), Mul(b, f.b));
}

// The tokens a query vector attends to: [begin, end).
struct TokenRange {
  int begin, end;
};

// A warp's share of a tile: 16 query vectors, kColumns of head_dim. Lane i holds rows i/4 and
// i/4 + 8, in each group of eight columns the two at 2·(i % 4).
template <int kHeadDim, int kColumns>
struct WarpTile {
  static constexpr int kChunks = kHeadDim / 8;  // 16-byte chunks of a row
  static constexpr int kGroups = kColumns / 8;

  float o[kGroups][4];
  float m[2], l[2];
  TokenRange range[2];

  TANDEM_DEVICE void Reset() {
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[g][e] = 0;
    }
    m[0] = m[1] = MinusInfinity();
    l[0] = l[1] = 0;
  }

  // Scores of tokens [first_token, + 32): `q` and `keys` are tiles in shared memory, q's of 16
  // rows.
  TANDEM_DEVICE void Score(const char* q, const char* keys, float s[4][4]) const {
    const int lane = LaneIndex();
#pragma unroll
    for (int n = 0; n < 4; ++n) s[n][0] = s[n][1] = s[n][2] = s[n][3] = 0;
#pragma unroll
    for (int step = 0; step < kHeadDim / 16; ++step) {
      uint32_t a[4];
      LoadMatrix4(a, q + SwizzledOffset<kChunks>(lane % 16, step * 2 + lane / 16));
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        const int token = n * 8 + lane / 16 * 8 + lane % 8;
        uint32_t b[4];
        LoadMatrix4(b, keys + SwizzledOffset<kChunks>(token, step * 2 + lane / 8 % 2));
        Mma(s[n], a, b);
        Mma(s[n + 1], a, b + 2);
      }
    }
  }

  // Turns scores into p and moves m and l on; returns what o is to be multiplied by in factor[2].
  TANDEM_DEVICE void Softmax(int first_token, float scale_log2, float s[4][4], float factor[2]) {
    float most[2] = {m[0], m[1]};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int token = first_token + n * 8 + LaneIndex() % 4 * 2 + e % 2;
        const TokenRange& r = range[e / 2];
        const bool attended = token >= r.begin && token < r.end;
        s[n][e] = attended ? Mul(s[n][e], scale_log2) : MinusInfinity();
        most[e / 2] = Max(most[e / 2], s[n][e]);
      }
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

  // o ← o·factor + p·V, this warp's columns beginning at chunk `first_chunk` of V's rows.
  TANDEM_DEVICE void AddValues(const char* values, int first_chunk, const float p[4][4],
                               const float factor[2]) {
    const int lane = LaneIndex();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
#pragma unroll
      for (int e = 0; e < 4; ++e) o[g][e] = Mul(o[g][e], factor[e / 2]);
    }
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const uint32_t a[4] = {PackBf16(p[2 * step][0], p[2 * step][1]),
                             PackBf16(p[2 * step][2], p[2 * step][3]),
                             PackBf16(p[2 * step + 1][0], p[2 * step + 1][1]),
                             PackBf16(p[2 * step + 1][2], p[2 * step + 1][3])};
#pragma unroll
      for (int g = 0; g < kGroups; g += 2) {
        const int token = step * 16 + lane % 16;
        uint32_t b[4];
        LoadMatrix4Transposed(b,
                              values + SwizzledOffset<kChunks>(token, first_chunk + g + lane / 16));
        Mma(o[g], a, b);
        Mma(o[g + 1], a, b + 2);
      }
    }
  }

  // Sums l over the lanes that share a row: once, at the end of a partition.
  TANDEM_DEVICE void FinishPartition() {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      l[h] = Add(l[h], ShuffleXor(l[h], 1));
      l[h] = Add(l[h], ShuffleXor(l[h], 2));
    }
  }

  // This = this merged with `later`, the next partition.
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
