// How long the blocks of a loan may take that moves from one creditor to another, or home, beside
// the messages about it: both nodes and the router allow the same.
// Thread safety: a pure function.
#pragma once

#include <algorithm>
#include <cstdint>

#include "absl/time/time.h"

namespace tandem::cost {

// What a slow network does.
inline constexpr int64_t kLoanBytesPerSecondMin = 250'000'000;
inline constexpr absl::Duration kLoanBytesTimeMax = absl::Seconds(4);

inline absl::Duration LoanBytesTime(int64_t bytes) {
  const double seconds = static_cast<double>(bytes) / static_cast<double>(kLoanBytesPerSecondMin);
  return std::clamp(absl::Seconds(seconds), absl::ZeroDuration(), kLoanBytesTimeMax);
}

}  // namespace tandem::cost
