// A row of logits as the blocks that sample from it see it: keys of tokens, walks over a part of
// the row, and the team of blocks that share it.
//
// A token's key orders by (logit descending, id ascending).
//
// A team is one block, or a cluster. Each of its blocks walks a part of the row, and all of them
// then know the same minimum, sum, list or histogram: they read each other's shared memory. So all
// blocks take the same decisions. Integers and minima do not depend on how many blocks there are.
// Thread safety: device functions, called by all threads of a team together; by those of a block
// where a comment says so.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/simt/exact_math.h"
#include "kernels/cuda/simt/hopper.h"

namespace tandem::kernels::TANDEM_SIMT {

inline constexpr int kSampleThreads = 512;
inline constexpr int kSampleWarps = kSampleThreads / kWarpSize;
inline constexpr float kLargestLogit = 3.402823466e38f;
// The bits of a key that hold the token; the logit lies above them.
inline constexpr int kTokenBits = 24;
inline constexpr int kKeyBits = kTokenBits + 32;
inline constexpr uint64_t kNoKey = ~uint64_t{0};
inline constexpr int kDigitBits = 11;
inline constexpr int kBins = 1 << kDigitBits;
inline constexpr int kListMax = 1024;
inline constexpr int kTeamMax = 8;  // blocks; a cluster of more is not portable

TANDEM_DEVICE float NegativeInfinity() { return BitsToFloat(0xff800000u); }

// Replaces NaN by −inf (Max and Min drop a NaN), and +inf by the largest float.
TANDEM_DEVICE float Clean(float x) { return Min(Max(x, NegativeInfinity()), kLargestLogit); }

// `x` was computed from `before`. Only a −inf or a NaN there becomes −inf.
TANDEM_DEVICE float KeepFinite(float before, float x) {
  const float finite = Min(Max(x, -kLargestLogit), kLargestLogit);
  return before > NegativeInfinity() ? finite : NegativeInfinity();
}

// The key of a token: ascending keys are descending logits, then ascending ids. −0 and 0 are equal.
TANDEM_DEVICE uint64_t MakeKey(float logit, int token) {
  const uint32_t bits = FloatToBits(logit + 0.0f);
  const uint32_t ascending = (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
  return uint64_t{~ascending} << kTokenBits | static_cast<uint32_t>(token);
}
TANDEM_DEVICE int TokenOfKey(uint64_t key) {
  return static_cast<int>(key & ((uint64_t{1} << kTokenBits) - 1));
}
TANDEM_DEVICE float LogitOfKey(uint64_t key) {
  const uint32_t ascending = ~static_cast<uint32_t>(key >> kTokenBits);
  return BitsToFloat((ascending >> 31) != 0 ? ascending & 0x7fffffffu : ~ascending);
}

// The shared memory of a block that samples.
struct SampleMemory {
  uint64_t list[kListMax];            // keys, in no order; of the whole row
  uint64_t part[kListMax];            // of a cluster's block: those of its part of the row
  uint64_t warp_words[kSampleWarps];  // one for each warp
  uint64_t found[3];                  // of FindBin
  uint32_t counts[kBins], low[kBins], high[kBins];
  uint64_t of_block[2];  // what a block shows to its team, in turns
  uint32_t list_size;    // tokens that the block offered; the list holds kListMax at most
};

// Tokens that biases or counts adjust, a bit each: in the histogram's memory, before it is used.
inline constexpr int kSeenTokensMax = 3 * kBins * 32;
static_assert(offsetof(SampleMemory, high) - offsetof(SampleMemory, counts) ==
              2 * kBins * sizeof(uint32_t));

TANDEM_DEVICE SampleMemory& Shared() { return *reinterpret_cast<SampleMemory*>(SharedMemory()); }

// Four neighbouring values of a row. Beyond its end they are −infinity.
struct alignas(16) FourValues {
  float of[4];
};

// The tokens [begin, end) of a row. Aligned: the row and `begin` lie on 16 bytes, `end` too.
struct Part {
  int begin, end;
  bool aligned;
};
TANDEM_DEVICE FourValues LoadFour(const float* values, const Part& part, int first) {
  if (part.aligned && first < part.end) return *reinterpret_cast<const FourValues*>(values + first);
  FourValues four;
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    four.of[j] = first + j < part.end ? values[first + j] : NegativeInfinity();
  }
  return four;
}
TANDEM_DEVICE void StoreFour(float* values, const Part& part, int first, const FourValues& four) {
  if (part.aligned) {
    if (first < part.end) *reinterpret_cast<FourValues*>(values + first) = four;
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    if (first + j < part.end) values[first + j] = four.of[j];
  }
}

// visit(first, four, whole) for all values of a part, four of each thread at a time in ascending
// order, by whole warps. Not `whole`: some may lie beyond the part. One multiprocessor reads much,
// so a thread has several loads under way; in whole rounds nothing checks bounds.
template <typename Visit>
TANDEM_DEVICE void ForEachFour(const float* values, const Part& part, const Visit& visit) {
  constexpr int kUnderWay = 4;
  constexpr int kRound = kSampleThreads * 4;
  int first = part.begin + ThreadIndex() * 4;
  int left = part.end - part.begin;
  if (part.aligned) {
#pragma unroll 1
    for (; left >= kRound * kUnderWay; left -= kRound * kUnderWay) {
      FourValues fours[kUnderWay];
#pragma unroll
      for (int i = 0; i < kUnderWay; ++i) {
        fours[i] = *reinterpret_cast<const FourValues*>(values + first + i * kRound);
      }
#pragma unroll
      for (int i = 0; i < kUnderWay; ++i) visit(first + i * kRound, fours[i], true);
      first += kRound * kUnderWay;
    }
  }
  if (left <= 0) return;
  FourValues next = LoadFour(values, part, first);
#pragma unroll 1
  for (; left > 0; left -= kRound) {
    const FourValues four = next;
    next = LoadFour(values, part, first + kRound);
    visit(first, four, false);
    first += kRound;
  }
}

// The best of the fours that a thread meets in ascending order of tokens. Comparing fours takes a
// third of what comparing tokens' keys would.
struct BestOfThread {
  float logit;  // clean; −inf: none yet
  int first;
  FourValues four;

  TANDEM_DEVICE void Take(int from, const FourValues& values) {
    const auto& v = values.of;
    const float most = Min(Max(Max(Max(v[0], v[1]), Max(v[2], v[3])), logit), kLargestLogit);
    if (most > logit) *this = {most, from, values};
  }
  // The best token's key; kNoKey: all are −inf.
  TANDEM_DEVICE uint64_t Key() const {
    int place = 3;
#pragma unroll
    for (int j = 2; j >= 0; --j) place = Clean(four.of[j]) == logit ? j : place;
    return logit > NegativeInfinity() ? MakeKey(logit, first + place) : kNoKey;
  }
};
TANDEM_DEVICE BestOfThread NoneYet() { return {NegativeInfinity(), 0, {}}; }

// What divides logits by the temperature.
struct Divider {
  float temperature, reciprocal;
  bool divides, in_range;  // whether it is not 1; whether DivideInRange takes it

  TANDEM_DEVICE explicit Divider(float of_row) : temperature(of_row == 0 ? 1.0f : of_row) {
    // Opaque: else the compiler divides again for each four, to save a register.
    const int bits = static_cast<int>(FloatToBits(Divide(1.0f, temperature)));
    reciprocal = BitsToFloat(static_cast<uint32_t>(Recomputed(bits)));
    divides = temperature != 1.0f;
    in_range = temperature >= 0x1p-20f && temperature <= 0x1p20f;
  }
  // The clean quotient of a clean logit.
  TANDEM_DEVICE float Of(float logit) const {
    return KeepFinite(logit, Divide(logit, temperature));
  }
  // Cleans and divides. Numbers well inside the range of floats need no cleaning.
  TANDEM_DEVICE void Apply(FourValues* four) const {
    auto& v = four->of;
    if (divides) {
      const float sum = Add(Add(Abs(v[0]), Abs(v[1])), Add(Abs(v[2]), Abs(v[3])));  // NaN if one is
      const float least = Min(Min(Abs(v[0]), Abs(v[1])), Min(Abs(v[2]), Abs(v[3])));
      if (in_range && sum <= 0x1p60f && least >= 0x1p-60f) {
#pragma unroll
        for (float& x : v) x = DivideInRange(x, temperature, reciprocal);
      } else {
#pragma unroll
        for (float& x : v) x = Of(Clean(x));
      }
    } else {
#pragma unroll
      for (float& x : v) x = Clean(x);
    }
  }
};

// The smallest `x` of the block, in every thread.
TANDEM_DEVICE uint64_t BlockMin(uint64_t x) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) {
    const uint64_t other = ShuffleXor(x, mask);
    x = other < x ? other : x;
  }
  SyncThreads();
  if (LaneIndex() == 0) Shared().warp_words[WarpIndex()] = x;
  SyncThreads();
  for (int warp = 0; warp < kSampleWarps; ++warp) {
    const uint64_t other = Shared().warp_words[warp];
    x = other < x ? other : x;
  }
  return x;
}

// The sum of `x` over the block, in every thread: a tree of shuffles, then over the warps.
TANDEM_DEVICE uint64_t BlockTotal(uint64_t x) {
  for (int mask = kWarpSize / 2; mask > 0; mask /= 2) x += ShuffleXor(x, mask);
  SyncThreads();
  if (LaneIndex() == 0) Shared().warp_words[WarpIndex()] = x;
  SyncThreads();
  uint64_t sum = 0;
  for (int warp = 0; warp < kSampleWarps; ++warp) sum += Shared().warp_words[warp];
  return sum;
}

// Fills `list`, [kListMax], with the keys of tokens of at least `from`, in any order, cleaned.
// Returns how many there are, of which the list has kListMax at most.
TANDEM_DEVICE int FillList(const float* values, const Part& part, float from, uint64_t* list) {
  SyncThreads();
  if (ThreadIndex() == 0) Shared().list_size = 0;
  SyncThreads();
  ForEachFour(values, part, [&](int first, const FourValues& four, bool whole) {
    const auto& v = four.of;
    const float most = Max(Max(Max(v[0], v[1]), Max(v[2], v[3])), NegativeInfinity());
    if (Ballot(most >= from) == 0) return;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float logit = Clean(v[j]);
      const bool takes = logit >= from && (whole || first + j < part.end);
      const uint32_t lanes = Ballot(takes);
      if (lanes == 0) continue;
      const int leader = LowestBit(lanes);
      uint32_t place = 0;
      if (LaneIndex() == leader) place = SharedAdd(&Shared().list_size, PopCount(lanes));
      place = Shuffle(place, leader) + PopCount(lanes & ((1u << LaneIndex()) - 1));
      if (takes && place < kListMax) list[place] = MakeKey(logit, first + j);
    }
  });
  SyncThreads();
  return static_cast<int>(Shared().list_size);
}

// The blocks that share a row.
template <bool kCluster>
class Team {
 public:
  TANDEM_DEVICE Team() {
    if constexpr (kCluster) {
      rank_ = ClusterRank();
      blocks_ = ClusterBlocks();
    }
  }
  TANDEM_DEVICE int rank() const { return rank_; }
  TANDEM_DEVICE int blocks() const { return blocks_; }

  TANDEM_DEVICE void Sync() const {
    if constexpr (kCluster) {
      SyncCluster();
    } else {
      SyncThreads();
    }
  }
  // The smallest x, in every thread.
  TANDEM_DEVICE uint64_t Min(uint64_t x) {
    return OverBlocks(BlockMin(x), [](uint64_t a, uint64_t b) { return a < b ? a : b; });
  }
  // The sum of x over the threads, in every thread.
  TANDEM_DEVICE uint64_t Total(uint64_t x) { return TotalOfBlocks(BlockTotal(x)); }
  // The sum of x over the blocks; a block's threads have the same x.
  TANDEM_DEVICE uint64_t TotalOfBlocks(uint64_t x) {
    return OverBlocks(x, [](uint64_t a, uint64_t b) { return a + b; });
  }

  // Where FillList puts the keys of the block's part.
  TANDEM_DEVICE uint64_t* PartOfList() const { return kCluster ? Shared().part : Shared().list; }
  // Copies all parts to the list of every block. REQUIRES: kListMax keys at most; a TotalOfBlocks
  // since the lists were filled; a barrier of the team before they are filled again.
  TANDEM_DEVICE void GatherList() const {
    if constexpr (kCluster) {
      const uint32_t size_of_lane =
          LaneIndex() < blocks_ ? LoadFromBlock(LaneIndex(), &Shared().list_size) : 0;
      const int from = WarpIndex() % blocks_;  // the block that the warp reads
      uint32_t before = 0;
      for (int rank = 0; rank < from; ++rank) before += Shuffle(size_of_lane, rank);
      const uint32_t size = Shuffle(size_of_lane, from);
      const uint32_t step = static_cast<uint32_t>(kSampleWarps / blocks_ * kWarpSize);
      uint32_t i = static_cast<uint32_t>(WarpIndex() / blocks_ * kWarpSize + LaneIndex());
      for (; i < size; i += step) {
        Shared().list[before + i] = LoadFromBlock(from, Shared().part + i);
      }
      SyncThreads();
    }
  }

  // Adds up the blocks' histograms, into each. REQUIRES: a SyncThreads since they were filled.
  TANDEM_DEVICE void MergeBins() const {
    if constexpr (kCluster) {
      constexpr int kEach = kBins / kSampleThreads;
      const int first = ThreadIndex() * kEach;
      uint32_t counts[kEach] = {};
      uint64_t masses[kEach] = {};
      SyncCluster();
#pragma unroll 1
      for (int rank = 0; rank < blocks_; ++rank) {
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          counts[i] += LoadFromBlock(rank, Shared().counts + first + i);
          masses[i] += uint64_t{LoadFromBlock(rank, Shared().high + first + i)} << 32;
          masses[i] += LoadFromBlock(rank, Shared().low + first + i);
        }
      }
      SyncCluster();  // all have read
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        Shared().counts[first + i] = counts[i];
        Shared().low[first + i] = static_cast<uint32_t>(masses[i]);
        Shared().high[first + i] = static_cast<uint32_t>(masses[i] >> 32);
      }
      SyncThreads();
    }
  }

 private:
  // Blocks use two words in turns: who writes one again has passed the barrier that all reached
  // after they had read it.
  template <typename Combine>
  TANDEM_DEVICE uint64_t OverBlocks(uint64_t mine, const Combine& combine) {
    if constexpr (kCluster) {
      slot_ ^= 1;
      if (ThreadIndex() == 0) Shared().of_block[slot_] = mine;
      SyncCluster();
#pragma unroll
      for (int step = 1; step < kTeamMax; ++step) {
        if (step >= blocks_) continue;
        const int rank = (rank_ + step) & (blocks_ - 1);
        mine = combine(mine, LoadFromBlock(rank, Shared().of_block + slot_));
      }
    }
    return mine;
  }

  int rank_ = 0;
  int blocks_ = 1;  // a power of two
  int slot_ = 0;
};

}  // namespace tandem::kernels::TANDEM_SIMT
