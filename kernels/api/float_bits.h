// The bits of a float. Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <cstring>

namespace tandem::kernels {

inline uint32_t FloatBits(float value) {
  uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

}  // namespace tandem::kernels
