// Adapts the Random seam to the generator that the standard library's distributions take.
// Thread safety: as the Random behind it.
#pragma once

#include <cstdint>

#include "common/runtime/random.h"

namespace tandem::cli {

class RandomBits {
 public:
  using result_type = uint64_t;
  explicit RandomBits(Random& random) : random_(random) {}
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return ~result_type{0}; }
  result_type operator()() { return random_.Next(); }

 private:
  Random& random_;
};

}  // namespace tandem::cli
