// What keeps predictions sane whatever nodes report. Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tandem::router {

inline constexpr double kPriceUsMax = 3.6e9;  // an hour
// No storage reads, and no link sends faster, whatever a node says: what twelve channels of DDR5
// pass on.
inline constexpr double kBytesPerUsMax = 500'000;
// Two transfers tell a fixed part from a rate; one does not.
inline constexpr int64_t kLinkSamplesMin = 2;

// From 0 to kPriceUsMax; NaN is not above 0.
inline double BoundedUs(double us) { return us > 0 ? std::min(us, kPriceUsMax) : 0; }

}  // namespace tandem::router
