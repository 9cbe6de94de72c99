// The seam for randomness that is not part of an answer: ids, jitter, incarnations. (The sampling
// kernels draw tokens with their own counter-based generator, never from here.)
// Thread safety: the comments on NewSystemRandom and NewSeededRandom state it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace tandem {

class Random {
 public:
  virtual ~Random() = default;
  // 64 independent uniform bits.
  virtual uint64_t Next() = 0;
  // Uniform in [0, bound). REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * bound) >> 64);
  }
};

// Seeded by the operating system. Not for secrets. Any thread may use it.
std::unique_ptr<Random> NewSystemRandom();
// Reproducible (SplitMix64), for tests and the simulator. One thread uses it.
std::unique_ptr<Random> NewSeededRandom(uint64_t seed);

// `count` bytes of the operating system's generator, for values that an attacker must not predict:
// secrets and authentication challenges. REQUIRES: count <= 256. Any thread may call it.
std::string SecretBytes(size_t count);

}  // namespace tandem
