// Runs one schedule: builds a cluster of the production state machines in virtual time, injects the
// schedule's faults, waits until every client is served and what was held has drained, and reports
// what the checkers found. A schedule always gives the same run.
// Thread safety: a function; independent calls may run in parallel.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "sim/sim_clients.h"
#include "sim/world/schedule.h"
#include "sim/world/violations.h"

namespace tandem::sim {

// The states of requests, leases and exports: columns of the coverage table.
inline constexpr std::array<absl::string_view, 12> kMachineStates = {
    "queued",         "reserving",      "prefilling",      "installing",
    "generating",     "lease:reserved", "lease:filling",   "lease:draining",
    "export:planned", "export:pushing", "export:finished", "export:cancelled"};
// How often a fault of each kind began while some machine was in each state. Requests are those of
// all routers; leases and exports those of the process that is hit, or of all for a fault of the
// network.
using Coverage = std::array<std::array<int64_t, kMachineStates.size()>, kFaultKinds>;

struct SimReport {
  std::vector<Violation> violations;
  std::vector<TimelineEntry> timeline;
  std::vector<std::string> process_names;  // by row of the timeline
  ClientCounts clients;
  Coverage coverage = {};
  // Where decode nodes got the KV of prompts from, summed over the nodes that are alive at the end.
  int64_t tokens_cached = 0, tokens_received = 0, tokens_computed = 0;
  // Summed over the routers and nodes that are alive at the end.
  int64_t sequences_migrated = 0, kv_tokens_moved = 0, blocks_adopted = 0;
  int64_t blocks_fetched = 0, part_tokens_fetched = 0, blocks_loaded = 0;
  int64_t blocks_read_from_host = 0;  // of blocks_loaded
  int64_t loans_asked = 0;            // of routers, whatever they answered
  int64_t postponed = 0;              // times that a sequence sat out because a creditor was late
  int64_t units_lent = 0, loans_lost = 0, loans_moved = 0, loans_home = 0, loans_planned = 0;
  int64_t links_measured = 0;  // from debtors to creditors: rate and round trip, at routers' ends
  int64_t loans_taken_over = 0;
  int64_t units_regained = 0;  // lost with a creditor, and lent by another holder
  // Sequences that kept the rest when they lost units, those of them that went on where they were,
  // lost rows that they computed, and times that they waited for their node's storage.
  int64_t rebuilds_begun = 0, rebuilds_done = 0, rows_rebuilt = 0, rebuild_reads = 0;
  int64_t loads_given_up = 0;     // from storage
  int64_t rows_computed = 0;      // by all engines, ever
  int64_t mixed_step_us_max = 0;  // of all nodes
  int64_t events = 0;
  std::vector<int64_t> answered_us;  // by request: when its client had the answer; 0: it had none
  int64_t virtual_us = 0;
};

// `timeline`: also records every event.
SimReport RunSchedule(const Schedule& schedule, bool timeline = false);

}  // namespace tandem::sim
