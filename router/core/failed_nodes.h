// The nodes that refused or failed one sequence a moment ago. Placement leaves each out until its
// time has passed.
//
// Thread safety: none; a SequenceMachine owns it.
// Invariants: one entry a node.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "router/fleet/fleet.h"
#include "router/fleet/node_key.h"

namespace tandem::router {

class FailedNodes {
 public:
  using Entries = std::vector<std::pair<NodeKey, absl::Time>>;

  // Leaves `node` out until `until`. Forgets nodes that have left `fleet`: placement cannot pick
  // them anyway, and so the fleet's size bounds the list.
  void Add(NodeKey node, absl::Time until, const Fleet& fleet) {
    entries_.erase(std::remove_if(entries_.begin(), entries_.end(),
                                  [&](const auto& entry) {
                                    return entry.first == node ||
                                           fleet.Find(entry.first) == nullptr;
                                  }),
                   entries_.end());
    entries_.emplace_back(node, until);
  }

  bool any(absl::Time now) const {
    return std::any_of(entries_.begin(), entries_.end(),
                       [now](const auto& entry) { return now < entry.second; });
  }
  // Each node with the time until which it is left out.
  const Entries& entries() const { return entries_; }

 private:
  // Bound: the joined nodes.
  Entries entries_;
};

}  // namespace tandem::router
