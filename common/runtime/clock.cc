#include "common/runtime/clock.h"

#include <chrono>

#include "absl/time/clock.h"

namespace tandem {
namespace {

class SteadyClock final : public Clock {
 public:
  SteadyClock() : wall_start_(absl::Now()), steady_start_(std::chrono::steady_clock::now()) {}
  absl::Time Now() const override {
    return wall_start_ + absl::FromChrono(std::chrono::steady_clock::now() - steady_start_);
  }

 private:
  const absl::Time wall_start_;
  const std::chrono::steady_clock::time_point steady_start_;
};

}  // namespace

const Clock& RealClock() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace tandem
