#include "common/runtime/random.h"

#include <unistd.h>

#include "absl/random/random.h"
#include "absl/synchronization/mutex.h"
#include "common/base/check.h"

namespace tandem {
namespace {

class SystemRandom final : public Random {
 public:
  uint64_t Next() override {
    absl::MutexLock lock(&mutex_);
    return absl::Uniform<uint64_t>(generator_);
  }

 private:
  absl::Mutex mutex_;
  absl::BitGen generator_ ABSL_GUARDED_BY(mutex_);
};

// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
class SeededRandom final : public Random {
 public:
  explicit SeededRandom(uint64_t seed) : state_(seed) {}
  uint64_t Next() override {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

}  // namespace

std::unique_ptr<Random> NewSystemRandom() { return std::make_unique<SystemRandom>(); }
std::unique_ptr<Random> NewSeededRandom(uint64_t seed) {
  return std::make_unique<SeededRandom>(seed);
}

std::string SecretBytes(size_t count) {
  std::string bytes(count, '\0');
  TANDEM_CHECK(::getentropy(bytes.data(), bytes.size()) == 0);
  return bytes;
}

}  // namespace tandem
