// How many blocks a node may still lend, as far as its reports say. Its own answer decides.
// Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "router/fleet/node.h"

namespace tandem::router {

inline int64_t LendableNow(const Node& node) {
  if (node.lending_address.empty() || node.draining || !node.load.debts().empty()) return 0;
  return std::min(node.lend_blocks_max - node.load.blocks_lent(), node.blocks_available());
}

// Those that it can spare: its own sequences keep a reserve (common/node/lender.h).
inline int64_t SpareToLend(const Node& node) {
  const int64_t reserve = std::max(node.load.sequences_running() + 2, node.num_blocks / 8);
  return std::max<int64_t>(0, std::min(LendableNow(node), node.blocks_available() - reserve));
}

}  // namespace tandem::router
