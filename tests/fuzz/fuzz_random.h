// Draws choices from a fuzzer's bytes, one byte each, so that a small change of an input changes
// little of what happens. When the bytes are used up, choices come from a fixed seed.
// Thread safety: none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/runtime/random.h"

namespace tandem::fuzz {

// The bytes, shared by all objects that draw choices.
struct Bytes {
  const uint8_t* data;
  size_t size;
  size_t at = 0;
  bool used_up() const { return at >= size; }
};

class FuzzRandom final : public Random {
 public:
  explicit FuzzRandom(Bytes& bytes) : bytes_(bytes), rest_(NewSeededRandom(1)) {}
  // The byte leads, so that Below(n) follows it.
  uint64_t Next() override {
    if (bytes_.used_up()) return rest_->Next();
    return uint64_t{bytes_.data[bytes_.at++]} << 56 | 0x5A5A5A;
  }

 private:
  Bytes& bytes_;
  const std::unique_ptr<Random> rest_;
};

}  // namespace tandem::fuzz
