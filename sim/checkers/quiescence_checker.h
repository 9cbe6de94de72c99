// Nothing outlives its owner: one lease time after the last request every figure that requests
// move is back where it began. Thread safety: none.
#pragma once

#include <string>
#include <vector>

#include "common/node/node_core.h"
#include "common/transfer/kv_transfer.h"
#include "router/core/router_core_impl.h"
#include "sim/world/violations.h"

namespace tandem::sim {

void CheckNodeQuiet(const std::string& name, const node::NodeCore& core,
                    const transfer::TransferCounters& transfer, RunLog& log);
void CheckRouterQuiet(const std::string& name, const router::RouterCoreImpl& core, absl::Time now,
                      RunLog& log);

// The router's index names what its nodes hold, no more and no less. REQUIRES: `nodes` are all that
// it has joined, and nothing is under way.
void CheckIndex(const std::string& name, const router::RouterCoreImpl& core,
                const std::vector<const node::NodeCore*>& nodes, RunLog& log);

}  // namespace tandem::sim
