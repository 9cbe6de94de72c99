// Philox4x32_10 of kernels/api/sampling.h: Philox4x32 with ten rounds (Salmon, Moraes, Dror, Shaw:
// Parallel random numbers, SC 2011).
#include "kernels/api/sampling.h"

namespace tandem::kernels {

PhiloxBlock Philox4x32_10(const uint32_t counter[4], const uint32_t key[2]) {
  uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]};
  uint32_t k[2] = {key[0], key[1]};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57u} * c[2];
    const uint32_t next0 = static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k[0];
    const uint32_t next2 = static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k[1];
    c[0] = next0;
    c[1] = static_cast<uint32_t>(product1);
    c[2] = next2;
    c[3] = static_cast<uint32_t>(product0);
    k[0] += 0x9E3779B9u;
    k[1] += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}

}  // namespace tandem::kernels
