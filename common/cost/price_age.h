// How long a measured price counts. Something that was measured dear gets no work, so no samples,
// so nothing would ever correct a price that was wrong. Therefore what a price lies above its
// prior halves each kPriceHalfLife, from kPriceTrusted after the last sample on, until it is tried
// again. The next sample restores the measured price. Prices below their prior attract work, and so
// samples: they stay. See docs/adr/0103-unused-prices-fade.md. Thread safety: pure functions.
#pragma once

#include <cmath>

#include "absl/time/time.h"

namespace tandem::cost {

inline constexpr absl::Duration kPriceTrusted = absl::Minutes(1);
inline constexpr absl::Duration kPriceHalfLife = absl::Seconds(30);

// What of `measured` counts at `now`, if its last sample came at `sampled`. A price without a
// sample's time (infinite future) does not fade. REQUIRES: finite prices.
inline double FadedPrice(double measured, double prior, absl::Time sampled, absl::Time now) {
  const absl::Duration beyond = now - sampled - kPriceTrusted;
  if (measured <= prior || beyond <= absl::ZeroDuration()) return measured;
  return prior + (measured - prior) * std::exp2(-absl::FDivDuration(beyond, kPriceHalfLife));
}

}  // namespace tandem::cost
