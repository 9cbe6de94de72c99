// A fresh seed for a test that draws its input, printed so that a failure can be repeated.
// Thread safety: any thread.
#pragma once

#include <cstdint>
#include <cstdio>
#include <random>

namespace tandem::testing {

inline uint64_t PrintedSeed() {
  const uint64_t seed = std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

}  // namespace tandem::testing
