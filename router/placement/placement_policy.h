// The ways to place requests that `--placement` names.
// Thread safety: values.
#pragma once

#include <array>
#include <utility>

#include "absl/strings/string_view.h"

namespace tandem::router {

enum class PlacementPolicy {
  // The pair of nodes with the least predicted time to the first token, and the least time that
  // running sequences lose (CostPlacement).
  kCost,
  // Weighs prefixes, queues and free blocks for both legs together (PairPlacement).
  kAffinity,
  // The others are there to compare with. They choose each leg's node alone, by one criterion, from
  // the nodes that may take the leg (LegChooser).
  kRoundRobin,      // the node after the last one, by node id
  kRandom,          // any node
  kLeastLoaded,     // the least loaded node
  kPrefixOnly,      // the node with the longest prefix; any node if none holds the first block
  kConsistentHash,  // by the prompt's first block: the same node for equal beginnings
};

inline constexpr std::array<std::pair<absl::string_view, PlacementPolicy>, 7> kPlacementPolicies = {
    {{"cost", PlacementPolicy::kCost},
     {"affinity", PlacementPolicy::kAffinity},
     {"round-robin", PlacementPolicy::kRoundRobin},
     {"random", PlacementPolicy::kRandom},
     {"least-loaded", PlacementPolicy::kLeastLoaded},
     {"prefix-only", PlacementPolicy::kPrefixOnly},
     {"consistent-hash", PlacementPolicy::kConsistentHash}}};

// The name that `--placement` takes.
constexpr absl::string_view NameOf(PlacementPolicy policy) {
  for (const auto& [name, known] : kPlacementPolicies) {
    if (known == policy) return name;
  }
  return "";
}

}  // namespace tandem::router
