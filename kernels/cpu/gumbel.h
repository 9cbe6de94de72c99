// Gumbel noise for sixteen tokens at a time: g = -log(-log u), u from Philox4x32-10.
// Thread safety: pure functions.
#pragma once

#include "kernels/cpu/vec_math.h"

namespace tandem::kernels::TANDEM_ISA {

// The noise of one choice: a function of (seed, sequence index, position) and the token id.
class GumbelNoise {
 public:
  TANDEM_INLINE GumbelNoise(uint64_t seed, uint32_t sequence_index, uint32_t position)
      : seed_(seed), sequence_index_(sequence_index), position_(position) {}

  // Whether any of the 64 tokens from `first` (a multiple of 64), whose logits are at most `logit`,
  // may score `score` or more with its noise. False is always right; true may be wrong. The test
  // takes a quarter of the work of computing the noise. With r = 1 - u, -log(1 - r) ≥ r, so g ≤
  // -log r, and g ≥ d requires r ≤ e^-d.
  TANDEM_INLINE bool MayReach(float score, float logit, int32_t first) const {
    // Two units in the last place of both: the sum of logit and noise is rounded, and so is this.
    const float slack = (Magnitude(score) + Magnitude(logit)) * 0x1p-22f;
    const float needed = score - logit - slack;
    if (needed > kMost) return false;
    // In units of 2^-16; the factor covers the rounding of g itself, some 2^-22 of 22.9.
    const float most = First(Exp(Set1(-needed))) * (0x1p16f * 1.0001f) + 1.0f;
    if (!(most < 65535.0f)) return true;
    U16 words[4];
    alignas(64) static constexpr uint32_t kLane[16] = {0, 1, 2,  3,  4,  5,  6,  7,
                                                       8, 9, 10, 11, 12, 13, 14, 15};
    Blocks(AddU(LoadU(kLane), SetU1(static_cast<uint32_t>(first) / 4)), words);
    const V16 bound = Set1(most);
    for (const U16& word : words) {
      if (Any(LessEqual(FromInt(ShiftRightU<16>(word)), bound))) return true;
    }
    return false;
  }

  // u = 1 - (w + ½)/2^32 for the token's word w, never 0 or 1. Computed through 1 - u, so that the
  // largest noise, which decides, keeps its full precision.
  TANDEM_INLINE V16 At(U16 ids) const {
    U16 word = Words(ids);
    // Exact halves, one rounding: the nearest float to w, as AVX2 has no unsigned conversion.
    V16 w =
        Fma(FromInt(ShiftRightU<16>(word)), Set1(65536.0f), FromInt(AndU(word, SetU1(0xffffu))));
    V16 rest = Min(Fma(w, Set1(0x1p-32f), Set1(0x1p-33f)), Set1(1.0f - 0x1p-24f));
    return Sub(Zero(), Log(NegLog1pNeg(rest)));
  }

 private:
  // Above -log 2^-33, the largest noise.
  static constexpr float kMost = 23.0f;

  static TANDEM_INLINE float Magnitude(float x) { return x < 0 ? -x : x; }

  // The words of sixteen Philox blocks, counters (block, position, sequence index, 0).
  TANDEM_INLINE void Blocks(U16 block, U16 (&words)[4]) const {
    uint32_t key0 = static_cast<uint32_t>(seed_), key1 = static_cast<uint32_t>(seed_ >> 32);
    U16 c0 = block, c1 = SetU1(position_);
    U16 c2 = SetU1(sequence_index_), c3 = SetU1(0);
    for (int round = 0; round < 10; ++round) {
      U16 low0, high0, low1, high1;
      MulWide(c0, 0xD2511F53u, &low0, &high0);
      MulWide(c2, 0xCD9E8D57u, &low1, &high1);
      c0 = XorU(XorU(high1, c1), SetU1(key0));
      c1 = low1;
      c2 = XorU(XorU(high0, c3), SetU1(key1));
      c3 = low0;
      key0 += 0x9E3779B9u;
      key1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
  }

  // Word id % 4 of the Philox block of id / 4.
  TANDEM_INLINE U16 Words(U16 ids) const {
    U16 words[4];
    Blocks(ShiftRightU<2>(ids), words);
    U16 which = AndU(ids, SetU1(3));
    return SelectEqualU(
        which, 0, words[0],
        SelectEqualU(which, 1, words[1], SelectEqualU(which, 2, words[2], words[3])));
  }

  uint64_t seed_;
  uint32_t sequence_index_;
  uint32_t position_;
};

}  // namespace tandem::kernels::TANDEM_ISA
