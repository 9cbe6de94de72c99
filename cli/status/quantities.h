// Quantities in few columns, for tables on a terminal.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace tandem::cli {

// At most 5 columns: 999, 1.2k, 43k, 7.0M, 12G. Negative numbers count as 0.
std::string ShortCount(double count);
// At most 6 columns, in powers of 1,000: 0B, 999B, 1.2kB, 43MB.
std::string ShortBytes(double bytes);
// At most 6 columns: 9.5s, 59s, 12m05s, 3h02m, 41d.
std::string ShortAge(double seconds);
// Exactly `columns` columns: padded with spaces, or cut with ~ at the end. Characters that are not
// printable ASCII become ?, so that no name can steer the terminal.
std::string Fit(absl::string_view text, int columns);
// The same without the padding.
std::string Cut(absl::string_view text, int columns);
// `part` of `whole` in percent, rounded down; 0 for an empty whole.
int Percent(int64_t part, int64_t whole);

}  // namespace tandem::cli
