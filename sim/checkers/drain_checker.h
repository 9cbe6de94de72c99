// Checks that a node that drains ends as soon as it has nothing left to do. One that never becomes
// idle ends too, when its time is over, and takes with it what it keeps: no other check sees it.
// Thread safety: a free function; the simulation's thread.
#pragma once

#include <string>

#include "absl/strings/str_cat.h"
#include "common/node/node_core.h"
#include "common/node/node_resources.h"
#include "sim/world/violations.h"

namespace tandem::sim {

// `core`, of `resources`: of a node whose time to drain is over, and has heard so by OnTick.
// `served`: no client waits for an answer, and no fault holds back what processes send each other.
inline void CheckDrained(const std::string& name, const node::NodeCore& core,
                         node::NodeResources& resources, bool served, RunLog& log) {
  const v1::NodeLoad load = core.load();
  if (core.idle() || !served || load.sequences_running() + load.sequences_waiting() > 0) return;
  // Transfers and loans have deadlines of their own, which may be later.
  if (load.leases() + load.exports() + load.blocks_quarantined() > 0) return;
  if (!resources.borrower().idle() || !resources.lender().idle()) return;
  if (!resources.stored_blocks().idle()) return;
  log.Violate("drain", absl::StrCat(name,
                                    " is not idle at the end of its drain; no sequence runs "
                                    "or waits, nothing is sent, and it uses ",
                                    load.blocks_used(), " blocks"));
}

}  // namespace tandem::sim
