// Philox4x32-10 and Gumbel noise for one token: the same words and bits as the CPU's
// (kernels/api/sampling.h defines them). Thread safety: pure functions.
#pragma once

#include "kernels/cuda/simt/exact_math.h"
#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// The four words of the block with counter (block, position, sequence index, 0): of tokens
// 4·block to 4·block + 3.
struct PhiloxWords {
  uint32_t of[4];

  // With a constant place per branch, so that the words stay in registers.
  TANDEM_DEVICE uint32_t WordAt(int place) const {
    return place == 0 ? of[0] : place == 1 ? of[1] : place == 2 ? of[2] : of[3];
  }
};
TANDEM_DEVICE PhiloxWords PhiloxBlock(uint64_t seed, uint32_t sequence_index, uint32_t position,
                                      uint32_t block) {
  uint32_t c[4] = {block, position, sequence_index, 0};
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c[2];
    c[0] = static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(product1);
    c[2] = static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

// g = −log(−log u), u = 1 − (word + ½)/2³², through 1 − u so that large noise keeps its precision.
TANDEM_DEVICE float GumbelOf(uint32_t word) {
  const float rest = Min(Fma(static_cast<float>(word), 0x1p-32f, 0x1p-33f), 1.0f - 0x1p-24f);
  return -ExactLog(ExactNegLog1pNeg(rest));
}

}  // namespace tandem::kernels::TANDEM_SIMT
