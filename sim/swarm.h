// Runs many schedules in parallel, and makes a failing schedule smaller.
// Thread safety: the functions may be called from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "sim/simulation.h"

namespace tandem::sim {

struct SwarmOptions {
  uint64_t first_seed = 1;  // seeds are first_seed, first_seed + 1, ...
  int64_t schedules = 2000;
  int threads = 1;
  int64_t failures_max = 5;  // stops after this many
};

struct SwarmReport {
  struct Failure {
    uint64_t seed = 0;
    Violation violation;  // the first
  };
  std::vector<Failure> failures;  // by seed
  int64_t schedules = 0, events = 0, virtual_us = 0;
  int64_t faults = 0, requests = 0;
  // As in SimReport.
  int64_t sequences_migrated = 0, kv_tokens_moved = 0, blocks_adopted = 0, blocks_fetched = 0;
  int64_t part_tokens_fetched = 0;
  int64_t blocks_read_from_host = 0;  // of blocks_loaded
  int64_t blocks_loaded = 0, units_lent = 0, loans_lost = 0, loans_moved = 0, loans_home = 0;
  int64_t loans_planned = 0, loans_taken_over = 0;
  int64_t units_regained = 0;
  int64_t rebuilds_begun = 0, rebuilds_done = 0, rows_rebuilt = 0, rebuild_reads = 0;
  int64_t loads_given_up = 0;
  ClientCounts clients;
  Coverage coverage = {};
  absl::Duration took;
};

SwarmReport RunSwarm(const SwarmOptions& options);
// Rates, totals and failures, as text.
std::string ToText(const SwarmReport& report);
// Rows are kinds of fault, columns states; a pair never hit is shown as "·".
std::string CoverageTable(const Coverage& coverage);

// The smallest schedule found that still violates `checker`: leaves out requests and faults, and
// shortens the remaining ones. Runs at most `runs` simulations.
Schedule Shrink(Schedule failing, const std::string& checker, int64_t runs);

}  // namespace tandem::sim
