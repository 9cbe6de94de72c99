// Philox4x32-10 and Gumbel noise for one token: the same words and bits as the CPU's
// (kernels/api/sampling.h defines them). Thread safety: pure functions.
#pragma once

#include "kernels/cuda/simt/exact_math.h"
#include "kernels/cuda/simt/simt.h"

namespace tandem::kernels::TANDEM_SIMT {

// Word token % 4 of the block with counter (token / 4, position, sequence index, 0).
TANDEM_BOTH inline uint32_t PhiloxWord(uint64_t seed, uint32_t sequence_index, uint32_t position,
                                       uint32_t token) {
  uint32_t c[4] = {token / 4, position, sequence_index, 0};
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
  const uint32_t which = token % 4;
  return which == 0 ? c[0] : which == 1 ? c[1] : which == 2 ? c[2] : c[3];
}

// g = −log(−log u), u = 1 − (word + ½)/2³², through 1 − u so that large noise keeps its precision.
TANDEM_DEVICE float GumbelOf(uint32_t word) {
  const float rest = Min(Fma(static_cast<float>(word), 0x1p-32f, 0x1p-33f), 1.0f - 0x1p-24f);
  return -ExactLog(ExactNegLog1pNeg(rest));
}

}  // namespace tandem::kernels::TANDEM_SIMT
