// What lending was measured to be worth: as a table, as JSON, and as one HTML page with charts.
// Thread safety: plain values and pure functions.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_lending/lending_bench.h"

namespace tandem::cli {

struct LendingReport {
  std::vector<std::pair<std::string, std::string>> settings;
  int64_t pool_tokens = 0;
  // Empty: not measured.
  std::vector<LongestContext> contexts;
  std::optional<LendingSlowdown> slowdown;
  std::vector<LendingMix> mixes;
  std::vector<LendingSkew> skews;
};

// For a terminal of 80 columns.
std::string FormatLendingTable(const LendingReport& report);
// One object: "settings", "pool_tokens", "contexts", "slowdown", "mixes", "skews".
std::string FormatLendingJson(const LendingReport& report);
// It is well-formed XML too.
std::string FormatLendingHtml(const LendingReport& report);

}  // namespace tandem::cli
