// The hash engine's arithmetic: hashes of tokens, and the words that its layers store.
// Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "common/base/ids.h"

namespace tandem::engine {

inline constexpr uint64_t kHashSalt = 0x74616e64656d6b76;    // "tandemkv"
inline constexpr uint64_t kHashGolden = 0x9e3779b97f4a7c15;  // 2^64 / the golden ratio

// SplitMix64's finalizer: a bijection in which every input bit moves every output bit.
constexpr uint64_t Scramble(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

constexpr uint64_t Combine(uint64_t a, uint64_t b) {
  return Scramble(Scramble(a + kHashGolden) ^ b);
}

constexpr uint64_t StartHash() { return Scramble(kHashSalt); }
constexpr uint64_t NextHash(uint64_t previous, TokenId token) {
  return Combine(previous ^ kHashSalt, static_cast<uint64_t>(token) + 1);
}
// The word that layer `layer` stores for a token whose hash is `hash`; layer 0 stores the hash
// itself.
constexpr uint64_t LayerWord(uint64_t hash, int layer) {
  return layer == 0 ? hash : Scramble(hash + kHashGolden * static_cast<uint64_t>(layer));
}

inline uint64_t ReadWord(const std::byte* bytes, int64_t word) {
  uint64_t value;
  std::memcpy(&value, bytes + word * 8, sizeof(value));
  return value;
}
// Whether a token's words in one layer are all `expected`.
inline bool WordsAre(const std::byte* bytes, int64_t words, uint64_t expected) {
  uint64_t wrong_bits = 0;
  for (int64_t w = 0; w < words; ++w) wrong_bits |= ReadWord(bytes, w) ^ expected;
  return wrong_bits == 0;
}

}  // namespace tandem::engine
