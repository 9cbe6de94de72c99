// The parts of the core that every sequence uses: the fleet and the index it is placed by, and the
// actions and counters it adds to. The core owns them all; they outlive the sequences.
// Thread safety: none; used on the core's strand.
#pragma once

#include "common/kv/block_hash.h"
#include "router/core/retry_budget.h"
#include "router/core/router_actions.h"
#include "router/core/router_counters.h"
#include "router/core/router_options.h"
#include "router/fleet/fleet.h"
#include "router/fleet/model_identity.h"
#include "router/fleet/prefix_index.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {

struct SequenceContext {
  const RouterOptions& options;
  const ModelIdentity& model;
  Fleet& fleet;
  PrefixIndex& index;
  PairPlacement& placement;
  RouterActions& actions;
  RouterCounters& counters;
  RetryBudget& retries;
  kv::BlockHasher& hasher;
};

}  // namespace tandem::router
