// The last token that top-k or top-p keep, found by one block without a sort.
//
// A token's key orders by (logit descending, id ascending). Radix selection walks a key's 56 bits
// from above, eleven at a time, over histograms of counts and of probabilities as 40-bit integers,
// and stops at a bin that holds one token. Integer sums do not depend on the order of atomics.
// A 64-bit addition in shared memory would be a loop of compare-and-swap, so sums lie there in two
// 32-bit words: the low word's old value says whether there is a carry. Lanes with the bin of the
// warp's first lane are added up by the warp, twice; so a histogram whose tokens all lie in a few
// bins takes few atomics.
//
// Selection runs over a list of keys in shared memory where it can: the tokens near the largest
// logit. Otherwise it scans the row.
// Thread safety: device functions, called by all threads of a block together.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/simt/exact_math.h"
#include "kernels/cuda/simt/simt.h"

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

TANDEM_DEVICE float NegativeInfinity() { return BitsToFloat(0xff800000u); }

// Replaces NaN by −inf (Max and Min drop a NaN), and +inf by the largest float.
TANDEM_DEVICE float Clean(float x) { return Min(Max(x, NegativeInfinity()), kLargestLogit); }

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

// e^(logit − max) as an integer of 40 bits below the point, cut off.
TANDEM_DEVICE uint64_t MassOf(float logit, float max) {
  const uint32_t bits = FloatToBits(ExactExp(Add(logit, -max)));
  // A normal number of at most 1, or 0: 24 bits times 2^(exponent − 150), moved up by 40.
  const int shift = static_cast<int>(bits >> 23) - 110;
  const uint64_t digits = (bits & 0x007fffffu) | 0x00800000u;
  if (bits == 0 || shift <= -24) return 0;
  return shift >= 0 ? digits << shift : digits >> -shift;
}

// Numbers of tokens and their masses.
struct TokenSum {
  uint64_t count = 0, mass = 0;
};

// The tokens that min-p, top-k and top-p keep: keys up to `cut`, and logits of at least `least`.
struct KeptTokens {
  float least;
  float max;
  uint64_t cut;

  TANDEM_DEVICE bool Has(float logit, uint64_t key) const {
    return logit > NegativeInfinity() && logit >= least && key <= cut;
  }
};

// The shared memory of a block that samples.
struct SampleMemory {
  uint64_t list[kListMax];            // keys, in no order
  uint64_t warp_words[kSampleWarps];  // one for each warp
  uint64_t found[3];                  // of FindBin
  uint32_t counts[kBins], low[kBins], high[kBins];
  uint32_t list_size;  // tokens that were offered; the list holds kListMax at most
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

// What selection walks: visit(logit, key, there) by whole warps; not `there`: no token.
struct RowSource {
  const float* values;
  Part part;

  template <typename Visit>
  TANDEM_DEVICE void ForEach(const Visit& visit) const {
    ForEachFour(values, part, [&](int first, const FourValues& four, bool whole) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        visit(four.of[j], MakeKey(four.of[j], first + j), whole || first + j < part.end);
      }
    });
  }
};
// REQUIRES: the list did not overflow.
struct ListSource {
  int size;

  template <typename Visit>
  TANDEM_DEVICE void ForEach(const Visit& visit) const {
    for (int base = 0; base < size; base += kSampleThreads) {
      const int i = base + ThreadIndex();
      const uint64_t key = i < size ? Shared().list[i] : kNoKey;
      visit(LogitOfKey(key), key, i < size);
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

// Σ of the masses of a warp's lanes. Each half has at most 21 bits.
TANDEM_DEVICE uint64_t WarpMass(uint64_t mass) {
  const uint32_t low = WarpTotal(static_cast<uint32_t>(mass & 0xfffff));
  return (uint64_t{WarpTotal(static_cast<uint32_t>(mass >> 20))} << 20) + low;
}

TANDEM_DEVICE void AddToBin(int bin, uint32_t count, uint64_t mass) {
  SharedAdd(Shared().counts + bin, count);
  if (mass == 0) return;
  const uint32_t low = static_cast<uint32_t>(mass);
  const uint32_t carry = SharedAdd(Shared().low + bin, low) > ~low ? 1 : 0;
  const uint32_t high = static_cast<uint32_t>(mass >> 32) + carry;
  if (high != 0) SharedAdd(Shared().high + bin, high);
}

// Adds one token of each active lane. By a whole warp.
TANDEM_DEVICE void AddToBins(bool active, int bin, uint64_t mass) {
  constexpr int kLeaderRounds = 2;
  uint32_t left = Ballot(active);
  for (int round = 0; round < kLeaderRounds && left != 0; ++round) {
    const int leader = LowestBit(left);
    // Outside of the condition: inactive lanes take part in the shuffle, too.
    const int of_leader = static_cast<int>(Shuffle(static_cast<uint32_t>(bin), leader));
    const bool same = active && bin == of_leader;
    const uint32_t lanes = Ballot(same);
    const uint64_t sum = WarpMass(same ? mass : 0);
    if (LaneIndex() == leader) AddToBin(bin, PopCount(lanes), sum);
    active = active && !same;
    left &= ~lanes;
  }
  if (active) AddToBin(bin, 1, mass);
}

// A bin of the histogram and what lies before it.
struct FoundBin {
  int bin;
  uint64_t before;  // weight
  uint64_t count;   // of tokens
};

// The first bin at which the weights from bin 0 on, and `reached` before them, reach `target`.
// REQUIRES: they do.
TANDEM_DEVICE FoundBin FindBin(bool by_mass, uint64_t reached, uint64_t target) {
  constexpr int kEach = kBins / kSampleThreads;
  const int first = ThreadIndex() * kEach;
  const auto weight_of = [by_mass](int bin) {
    const SampleMemory& shared = Shared();
    return by_mass ? uint64_t{shared.high[bin]} << 32 | shared.low[bin]
                   : uint64_t{shared.counts[bin]};
  };
  uint64_t mine = 0;
  for (int i = 0; i < kEach; ++i) mine += weight_of(first + i);
  uint64_t through = mine;  // of the warp's lanes up to this one
  for (int distance = 1; distance < kWarpSize; distance *= 2) {
    const uint64_t other = Shuffle(through, LaneIndex() - distance);
    if (LaneIndex() >= distance) through += other;
  }
  if (LaneIndex() == kWarpSize - 1) Shared().warp_words[WarpIndex()] = through;
  SyncThreads();
  uint64_t before = reached + through - mine;
  for (int warp = 0; warp < WarpIndex(); ++warp) before += Shared().warp_words[warp];
  if (before < target && before + mine >= target) {
    int bin = first;
    for (; before + weight_of(bin) < target; ++bin) before += weight_of(bin);
    Shared().found[0] = static_cast<uint64_t>(bin);
    Shared().found[1] = before;
    Shared().found[2] = Shared().counts[bin];
  }
  SyncThreads();
  return {static_cast<int>(Shared().found[0]), Shared().found[1], Shared().found[2]};
}

// A key that tells the shortest prefix of the kept tokens whose weights reach `target`, whose keys
// are up to it, from the other kept tokens, whose keys exceed it. Tokens that are not kept may lie
// on either side. Weights are counts of tokens, or masses where `by_mass`. REQUIRES: all kept
// tokens together reach the target.
template <typename Source>
TANDEM_DEVICE uint64_t SelectCut(const Source& source, const KeptTokens& kept, bool by_mass,
                                 uint64_t target) {
  uint64_t prefix = 0, reached = 0;
  for (int shift = kKeyBits; shift > 0;) {
    const int next = shift > kDigitBits ? shift - kDigitBits : 0;
    SyncThreads();
    for (int i = ThreadIndex(); i < kBins; i += kSampleThreads) {
      Shared().counts[i] = Shared().low[i] = Shared().high[i] = 0;
    }
    SyncThreads();
    source.ForEach([&](float logit, uint64_t key, bool there) {
      const bool active = there && key >> shift == prefix && kept.Has(logit, key);
      const uint64_t mass = active && by_mass ? MassOf(logit, kept.max) : 0;
      const int bin = static_cast<int>(key >> next & ((uint64_t{1} << (shift - next)) - 1));
      AddToBins(active, bin, mass);
    });
    SyncThreads();
    const FoundBin found = FindBin(by_mass, reached, target);
    prefix = prefix << (shift - next) | static_cast<uint32_t>(found.bin);
    reached = found.before;
    shift = next;
    // A bin that is kept as a whole: nothing in it needs to be told apart.
    const bool whole = found.count == 1 || (!by_mass && reached + found.count == target);
    if (whole) return prefix << shift | ((uint64_t{1} << shift) - 1);
  }
  return prefix;
}

// Counts kept tokens, and their masses where `by_mass`.
template <typename Source>
TANDEM_DEVICE TokenSum SumKept(const Source& source, const KeptTokens& kept, bool by_mass) {
  TokenSum sum;
  source.ForEach([&](float logit, uint64_t key, bool there) {
    if (!there || !kept.Has(logit, key)) return;
    ++sum.count;
    if (by_mass) sum.mass += MassOf(logit, kept.max);
  });
  sum.count = BlockTotal(sum.count);
  if (by_mass) sum.mass = BlockTotal(sum.mass);
  return sum;
}

// Fills the list with the keys of tokens of at least `from`, in any order, cleaned. Returns how
// many there are, of which the list has kListMax at most.
TANDEM_DEVICE int FillList(const float* values, const Part& part, float from) {
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
      if (takes && place < kListMax) Shared().list[place] = MakeKey(logit, first + j);
    }
  });
  SyncThreads();
  return static_cast<int>(Shared().list_size);
}

}  // namespace tandem::kernels::TANDEM_SIMT
