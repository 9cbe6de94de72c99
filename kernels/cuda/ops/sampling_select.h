// The last token that top-k or top-p keep, found by a team of blocks (sampling_row.h) without a
// sort.
//
// Radix selection walks a key's 56 bits from above, eleven at a time, over histograms of counts and
// of probabilities as 40-bit integers, and stops at a bin that holds one token. Integer sums do not
// depend on the order of atomics. A 64-bit addition in shared memory would be a loop of
// compare-and-swap, so sums lie there in two 32-bit words: the low word's old value says whether
// there is a carry. Lanes with the bin of the warp's first lane are added up by the warp, twice; so
// a histogram whose tokens all lie in a few bins takes few atomics.
//
// Selection runs over a list of keys in shared memory where it can: the tokens near the largest
// logit, which each block of a team holds. Otherwise each block scans its part of the row, and the
// team adds up the histograms.
// Thread safety: device functions, called by all threads of a team together.
#pragma once

#include <cstdint>

#include "kernels/cuda/ops/sampling_row.h"
#include "kernels/cuda/simt/exact_math.h"

namespace tandem::kernels::TANDEM_SIMT {

// e^(logit − max) as an integer of 40 bits below the point, cut off.
TANDEM_DEVICE uint64_t MassOf(float logit, float max) {
  const uint32_t bits = FloatToBits(ExactExp(Add(logit, -max)));
  // A normal number of at most 1, or 0: 24 bits times 2^(exponent − 150), moved up by 40.
  const int shift = static_cast<int>(bits >> 23) - 110;
  const uint64_t digits = (bits & 0x007fffffu) | 0x00800000u;
  if (bits == 0 || shift <= -24) return 0;
  return shift >= 0 ? digits << shift : digits >> -shift;
}

// The tokens that min-p, top-k and top-p keep: keys up to `cut`, and logits of at least `least`.
struct KeptTokens {
  float least;
  float max;
  uint64_t cut;

  TANDEM_DEVICE bool Has(float logit, uint64_t key) const {
    return logit > NegativeInfinity() && logit >= least && key <= cut;
  }
};

// What selection walks: visit(logit, key, there) by whole warps; not `there`: no token.
template <bool kCluster>
struct RowSource {
  const float* values;
  Part part;
  Team<kCluster>* team;

  template <typename Visit>
  TANDEM_DEVICE void ForEach(const Visit& visit) const {
    ForEachFour(values, part, [&](int first, const FourValues& four, bool whole) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        visit(four.of[j], MakeKey(four.of[j], first + j), whole || first + j < part.end);
      }
    });
  }
  TANDEM_DEVICE uint64_t Total(uint64_t x) const { return team->Total(x); }
  TANDEM_DEVICE void MergeBins() const { team->MergeBins(); }
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
  TANDEM_DEVICE uint64_t Total(uint64_t x) const { return BlockTotal(x); }
  TANDEM_DEVICE void MergeBins() const {}
};

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
    source.MergeBins();
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

// Counts kept tokens, or adds up their masses.
template <typename Source>
TANDEM_DEVICE uint64_t SumKept(const Source& source, const KeptTokens& kept, bool by_mass) {
  uint64_t sum = 0;
  source.ForEach([&](float logit, uint64_t key, bool there) {
    if (!there || !kept.Has(logit, key)) return;
    sum += by_mass ? MassOf(logit, kept.max) : 1;
  });
  return source.Total(sum);
}

}  // namespace tandem::kernels::TANDEM_SIMT
