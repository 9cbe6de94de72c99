// What the swarm's tests share: the topology of nodes that lend, and the check of a report.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "sim/simulation.h"

namespace tandem::sim {

// Nodes of 24 blocks (192 tokens) that lend half of them. `window`: tokens of the windowed layer's
// window; 0: the model has none.
inline Schedule LendingSchedule(int64_t prefill_nodes, int64_t decode_nodes, int64_t window = 0) {
  Schedule schedule;
  Topology& t = schedule.topology;
  t.prefill_nodes = prefill_nodes;
  t.decode_nodes = decode_nodes;
  t.blocks_per_node = 24;
  t.lend_blocks = 12;
  t.step_us = 2'000;
  t.window_tokens = std::max<int64_t>(1, window);
  t.window_slots = window > 0 ? 6 : 0;
  return schedule;
}

inline void ExpectNoViolations(const SimReport& report) {
  for (const Violation& v : report.violations) ADD_FAILURE() << v.checker << ": " << v.what;
}

}  // namespace tandem::sim
