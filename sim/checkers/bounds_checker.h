// Checks that memory stays bounded: what a process queues for others and what it stores.
// Thread safety: free functions; the simulation's thread.
#pragma once

#include <string>

#include "common/transfer/kv_transfer.h"
#include "router/core/router_core.h"
#include "sim/world/schedule.h"
#include "sim/world/violations.h"

namespace tandem::sim {

// A sequence of n blocks has at most n leased, exported, sent and received at once; the pool bounds
// their sum, and the KV plane's own limits bound the rest.
inline void CheckNodeBounds(const std::string& name, const Topology& topology,
                            const transfer::TransferCounters& transfer, RunLog& log) {
  // Two layers of every block, and one of those with a window slot (EngineOptions).
  const int64_t cells = topology.blocks_per_node * 2 + topology.window_slots;
  const auto expect = [&](absl::string_view what, int64_t figure, int64_t bound) {
    if (figure > bound)
      log.Violate("bounds", absl::StrCat(name, ": ", what, " = ", figure, ", at most ", bound));
  };
  expect("leases open", transfer.leases_open, topology.blocks_per_node);
  expect("receives in flight", transfer.receives_in_flight, cells);
  // Blocks may be shared by the exports of several sequences of one prefix.
  expect("exports open", transfer.exports_open, topology.max_sequences + 1024);
  expect("sends in flight", transfer.sends_in_flight,
         transfer.exports_open * (1 + topology.bytes_in_flight / (8 * topology.block_tokens)));
}

inline void CheckRouterBounds(const std::string& name, const router::RouterCore& core,
                              int64_t requests, int64_t sequences, int64_t index_blocks_max,
                              RunLog& log) {
  const auto expect = [&](absl::string_view what, int64_t figure, int64_t bound) {
    if (figure > bound)
      log.Violate("bounds", absl::StrCat(name, ": ", what, " = ", figure, ", at most ", bound));
  };
  expect("requests", core.request_counts().total(), requests);
  expect("sequences queued", core.sequences_queued(), sequences);
  expect("deadlines", core.deadlines(), sequences);
  expect("index entries", core.index().entries(), index_blocks_max);
}

}  // namespace tandem::sim
