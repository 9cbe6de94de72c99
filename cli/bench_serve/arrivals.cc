#include "cli/bench_serve/arrivals.h"

#include <random>

#include "cli/bench_serve/random_bits.h"

namespace tandem::cli {

absl::Duration Arrivals::NextGap() {
  RandomBits bits(random_);
  switch (options_.kind) {
    case ArrivalKind::kPoisson:
      return absl::Seconds(std::exponential_distribution<double>(options_.rate)(bits));
    case ArrivalKind::kBursty:
      return absl::Seconds(std::gamma_distribution<double>(
          options_.burstiness, 1 / (options_.rate * options_.burstiness))(bits));
    case ArrivalKind::kEven:
      break;
  }
  return absl::Seconds(1 / options_.rate);
}

}  // namespace tandem::cli
