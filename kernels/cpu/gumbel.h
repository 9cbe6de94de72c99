// Gumbel noise for sixteen tokens at a time: g = -log(-log u), u from Philox4x32-10.
#pragma once

#include "kernels/cpu/vec_math.h"

namespace tandem::kernels::TANDEM_ISA {

// The noise of one choice: a function of (seed, sequence index, position) and the token id.
class GumbelNoise {
 public:
  TANDEM_INLINE GumbelNoise(uint64_t seed, uint32_t sequence_index, uint32_t position)
      : seed_(seed), sequence_index_(sequence_index), position_(position) {}

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
  // Word id % 4 of the Philox block with counter (id / 4, position, sequence index, 0).
  TANDEM_INLINE U16 Words(U16 ids) const {
    uint32_t key0 = static_cast<uint32_t>(seed_), key1 = static_cast<uint32_t>(seed_ >> 32);
    U16 c0 = ShiftRightU<2>(ids), c1 = SetU1(position_);
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
    U16 which = AndU(ids, SetU1(3));
    return SelectEqualU(which, 0, c0, SelectEqualU(which, 1, c1, SelectEqualU(which, 2, c2, c3)));
  }

  uint64_t seed_;
  uint32_t sequence_index_;
  uint32_t position_;
};

}  // namespace tandem::kernels::TANDEM_ISA
