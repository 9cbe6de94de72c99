// The inner body of attention on Hopper: 64 query vectors of one warpgroup against 64 tokens of K
// and V in shared memory. The formulas are those of attention_tile.h, with other instructions and
// sub-tiles of 64 tokens; prompt rows and generated ones run this one body.
//
//   S = q·Kᵀ               m64n64k16, head_dim ascending
//   p = 2^(S·scale·log₂e − m)
//   p·V                    m64nNk16, tokens ascending, p in registers
// A sub-tile in which a row attends to no token leaves that row's m, l and o unchanged, to the bit.
// Thread safety: device functions, called by all threads of a warpgroup together.
#pragma once

#include "kernels/api/attention.h"
#include "kernels/cuda/ops/attention_tile.h"
#include "kernels/cuda/simt/hopper.h"
#include "kernels/cuda/simt/launch.h"

namespace tandem::kernels::TANDEM_SIMT {

inline constexpr float kLog2OfE = 1.4426950408889634f;
inline constexpr int kWarpgroupVectors = 64;
inline constexpr int kNarrowTileVectors = 16;  // of those, in narrow items and in records
inline constexpr int kWarpgroupTokens = 64;
inline constexpr int kWarpgroupTilesPerPartition = kPartitionTokens / kWarpgroupTokens;

// p of a sub-tile as the operand of products: steps of 16 tokens.
struct PackedWeights {
  uint32_t of[kWarpgroupTokens / 16][4];

  TANDEM_DEVICE void Pack(const float (&p)[kWarpgroupTokens / 2]) {
#pragma unroll
    for (int step = 0; step < kWarpgroupTokens / 16; ++step) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        of[step][i] = PackBf16(p[step * 8 + i * 2], p[step * 8 + i * 2 + 1]);
      }
    }
  }
  // Called after the wait for the product, so that the compiler reuses no operand register earlier.
  TANDEM_DEVICE void Hold() {
#pragma unroll
    for (int step = 0; step < kWarpgroupTokens / 16; ++step) HoldOperand(of[step]);
  }
};

// A partition's maximum and sum so far, for the two rows that a lane holds.
struct RowSums {
  float m[2], l[2];

  TANDEM_DEVICE void Reset() {
    m[0] = m[1] = MinusInfinity();
    l[0] = l[1] = 0;
  }
  // With l summed over the lanes that share a row.
  TANDEM_DEVICE RowSums OverLanes() const {
    RowSums sums = *this;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sums.l[h] = Add(sums.l[h], ShuffleXor(sums.l[h], 1));
      sums.l[h] = Add(sums.l[h], ShuffleXor(sums.l[h], 2));
    }
    return sums;
  }
};

// A warpgroup's tile. Lane i holds rows i/4 and i/4 + 8 of its warp's 16; accumulators as
// StartProduct lays them out. Products of o and scores of the next sub-tile may be under way
// together: only Rescale, ResetValues and the total access o.
template <int kHeadDim>
struct WarpgroupTile {
  float o[kHeadDim / 2];
  RowSums sums;

  TANDEM_DEVICE void Reset() {
    ResetValues();
    sums.Reset();
  }
  TANDEM_DEVICE void ResetValues() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0;
  }

  // Scores of tokens [first_token, + 64) outside of a row's range become −infinity.
  TANDEM_DEVICE static void Mask(int first_token, const TokenRange range[2],
                                 float (&s)[kWarpgroupTokens / 2]) {
#pragma unroll
    for (int i = 0; i < kWarpgroupTokens / 2; ++i) {
      const int token = first_token + i / 4 * 8 + LaneIndex() % 4 * 2 + i % 2;
      const TokenRange& r = range[i / 2 % 2];
      if (token < r.begin || token >= r.end) s[i] = MinusInfinity();
    }
  }

  // Turns scores of tokens [first_token, + 64), not scaled yet, into p and updates m and l: the
  // scale is multiplied in where m is subtracted, rounded once. The caller multiplies o by
  // factor[2] before it adds p·V. REQUIRES: scale_log2 > 0, so that the largest score stays the
  // largest when scaled.
  TANDEM_DEVICE void Softmax(int first_token, float scale_log2, const TokenRange range[2],
                             float (&s)[kWarpgroupTokens / 2], float (&factor)[2]) {
    // Most sub-tiles of a long prompt lie inside all ranges.
    if (!range[0].Has(first_token, kWarpgroupTokens) ||
        !range[1].Has(first_token, kWarpgroupTokens)) {
      Mask(first_token, range, s);
    }
    // Two chains for each row: a maximum is the same in any order.
    float part[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
    for (int i = 4; i < kWarpgroupTokens / 2; ++i) part[i % 4] = Max(part[i % 4], s[i]);
    float most[2] = {Max(part[0], part[1]), Max(part[2], part[3])};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      most[h] = Max(most[h], ShuffleXor(most[h], 1));
      most[h] = Max(most[h], ShuffleXor(most[h], 2));
      most[h] = Max(sums.m[h], Mul(most[h], scale_log2));
      const float anchor = Anchor(most[h]);
      factor[h] = Exp2(Add(sums.m[h], -anchor));
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kWarpgroupTokens / 2; ++i) {
        if (i / 2 % 2 != h) continue;
        s[i] = Exp2(Fma(s[i], scale_log2, -anchor));
        sum = Add(sum, s[i]);
      }
      sums.l[h] = Add(Mul(sums.l[h], factor[h]), sum);
      sums.m[h] = most[h];
    }
  }

  TANDEM_DEVICE void Rescale(const float (&factor)[2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = Mul(o[i], factor[i / 2 % 2]);
  }

  // Starts o += p·V: `values` are panels of V. REQUIRES: between FenceProducts and CommitProducts.
  TANDEM_DEVICE void StartValues(const char* values, const PackedWeights& p) {
    const uint64_t first = TransposedDescriptor(values, 0, kWarpgroupTokens);
#pragma unroll
    for (int step = 0; step < kWarpgroupTokens / 16; ++step) {
      AddRegisterProduct(o, p.of[step], DescriptorBehind(first, step * 16 * kPanelRowBytes));
    }
  }
};

// The storage of a total's o: registers, or each thread's own part of shared memory, element i at
// i · kThreads.
template <int kCount>
struct RegisterValues {
  float of[kCount];
  TANDEM_DEVICE float& At(int i) { return of[i]; }
};
template <int kThreads>
struct SharedValues {
  float* first;
  TANDEM_DEVICE float& At(int i) { return first[i * kThreads]; }
};

// The merge of a tile's partitions so far.
template <int kHeadDim, typename Values>
struct WarpgroupTotal {
  Values o;
  float m[2], l[2];

  TANDEM_DEVICE void Reset() {
#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o.At(i) = 0;
    m[0] = m[1] = MinusInfinity();
    l[0] = l[1] = 0;
  }

  // Merges the next partition into this.
  TANDEM_DEVICE void Merge(const RowSums& later, const float (&later_o)[kHeadDim / 2]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const MergeFactors f = FactorsOf(m[h], later.m[h]);
      m[h] = f.m;
      l[h] = MergeValue(f, l[h], later.l[h]);
#pragma unroll
      for (int i = 0; i < kHeadDim / 2; ++i) {
        if (i / 2 % 2 == h) o.At(i) = MergeValue(f, o.At(i), later_o[i]);
      }
    }
  }
};

}  // namespace tandem::kernels::TANDEM_SIMT
