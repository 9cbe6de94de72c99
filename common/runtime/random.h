// The seam for randomness that is not part of an answer: ids, jitter, incarnations. (Tokens are
// drawn by the counter-based generator of the sampling kernels, never from here.) Thread safety: as
// stated by the implementation.
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

// Seeded from the operating system, not for secrets. Thread-safe.
std::unique_ptr<Random> NewSystemRandom();
// Reproducible (SplitMix64), for tests and the simulator. Not thread-safe.
std::unique_ptr<Random> NewSeededRandom(uint64_t seed);

// Of the operating system's own generator, for what nobody may foretell: secrets, and challenges to
// who says that they hold one. At most 256 bytes. Thread-safe.
std::string SecretBytes(size_t count);

}  // namespace tandem
