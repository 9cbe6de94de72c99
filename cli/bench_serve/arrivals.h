// When requests of an open-loop load arrive: gaps drawn from a distribution of a given mean.
// Thread safety: none; one thread at a time. Owner: the load run.
#pragma once

#include "absl/time/time.h"
#include "common/runtime/random.h"

namespace tandem::cli {

enum class ArrivalKind {
  kEven,     // every 1/rate seconds
  kPoisson,  // exponential gaps: independent arrivals
  kBursty,   // gamma gaps of shape `burstiness`: below 1 clustered, 1 = Poisson, above 1 evener
};

struct ArrivalOptions {
  ArrivalKind kind = ArrivalKind::kPoisson;
  double rate = 1;         // requests a second, > 0
  double burstiness = .5;  // > 0; the gaps' squared coefficient of variation is 1 / burstiness
};

class Arrivals {
 public:
  // `random` outlives the object. REQUIRES: rate and burstiness > 0.
  Arrivals(const ArrivalOptions& options, Random& random) : options_(options), random_(random) {}

  // The time from one arrival to the next.
  absl::Duration NextGap();

 private:
  const ArrivalOptions options_;
  Random& random_;
};

}  // namespace tandem::cli
