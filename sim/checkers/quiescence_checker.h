// Checks that requests leave nothing behind: some time after the last request, every count that
// requests change has its initial value again.
// Thread safety: free functions; the simulation's thread.
#pragma once

#include <map>
#include <string>

#include "common/node/node_core.h"
#include "common/node/node_resources.h"
#include "common/transfer/kv_transfer.h"
#include "router/core/router_core.h"
#include "sim/world/violations.h"

namespace tandem::sim {

void CheckNodeQuiet(const std::string& name, const node::NodeCore& core,
                    const node::NodeResources& resources,
                    const transfer::TransferCounters& transfer, RunLog& log);
void CheckRouterQuiet(const std::string& name, const router::RouterCore& core, absl::Time now,
                      RunLog& log);

// Checks that exactly `nodes` are in the router's fleet; returns whether they are. A node that
// lives and never joined again is seen by no other check. REQUIRES: nothing is in flight.
bool CheckFleet(const std::string& name, const router::RouterCore& core,
                const std::map<std::string, const node::NodeResources*>& nodes, RunLog& log);

// Checks that the router's index holds exactly the blocks that its nodes hold, each in its tier;
// if it `forgets`, because of its bound, some of them and no others. REQUIRES: `nodes` are all
// nodes that joined it, and nothing is in flight.
void CheckIndex(const std::string& name, const router::RouterCore& core,
                const std::map<std::string, const node::NodeResources*>& nodes, bool forgets,
                RunLog& log);

}  // namespace tandem::sim
