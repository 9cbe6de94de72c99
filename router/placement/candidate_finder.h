// Finds the nodes that a leg could run on and that are worth a score: those that hold the longest
// prefixes of the prompt, and the least loaded ones. Each placement thus weighs a few nodes,
// however many have joined.
//
// Thread safety: none; used on the core's strand.
// Invariants: keeps no state. At most kHolders + kLeastLoaded candidates, each node once.
#pragma once

#include <vector>

#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "router/placement/leg_criteria.h"

namespace tandem::router {

class CandidateFinder {
 public:
  static constexpr size_t kHolders = 8;
  static constexpr size_t kLeastLoaded = 8;
  // Nodes looked at in order of load. A node is passed over when a filter drops it: it is full, or
  // refused this sequence a moment ago. Past this many, the nodes found so far must do.
  static constexpr size_t kVisitedMax = 32;

  // Both outlive this.
  CandidateFinder(const Fleet& fleet, const PrefixIndex& index) : fleet_(fleet), index_(index) {}

  // `holders`: the index's answer for `hashes` and the leg's group. Empty only if no node of the
  // group passes the criteria's filters; a node that passes HasFreeRoom only thanks to the prefix
  // it holds counts if it is among the holders. When the first kVisitedMax nodes are all dropped,
  // the search goes on: for a decode leg by free room, so that it ends where the room does.
  std::vector<Candidate> Find(const LegCriteria& criteria, const LegNeeds& needs,
                              absl::Span<const kv::BlockHash> hashes,
                              absl::Span<const PrefixIndex::Match> holders) const;
  // The node as a candidate that holds the first `blocks` blocks of the prompt.
  static Candidate Of(const Node& node, const LegNeeds& needs, int32_t blocks);
  // The same, with what the index says of it.
  Candidate Of(const Node& node, const LegNeeds& needs,
               absl::Span<const kv::BlockHash> hashes) const;

 private:
  class Collection;

  const Fleet& fleet_;
  const PrefixIndex& index_;
};

}  // namespace tandem::router
