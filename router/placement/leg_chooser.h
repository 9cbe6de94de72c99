// Chooses one leg's node by a single criterion, for the placement policies that exist to compare
// with. Filters hold as for the default policy: a chosen node may take the leg.
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: its state is the node that round robin chose last in each group.
// Cost: a look at each node of the leg's role, except for least-loaded and prefix-only.
#pragma once

#include <array>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "common/runtime/random.h"
#include "router/fleet/fleet.h"
#include "router/placement/candidate_finder.h"
#include "router/placement/leg_criteria.h"
#include "router/placement/placement_policy.h"

namespace tandem::router {

class LegChooser {
 public:
  // Which nodes the leg may run on, beside what the filters say.
  using Admits = absl::FunctionRef<bool(const Node& node)>;

  // `fleet`, `finder` and `random` outlive this.
  LegChooser(PlacementPolicy policy, const Fleet& fleet, const CandidateFinder& finder,
             Random& random)
      : policy_(policy), fleet_(fleet), finder_(finder), random_(random) {}

  // nullopt when no node passes the filters and `admits`. `holders`: see CandidateFinder::Find.
  // REQUIRES: the policy is neither kCost nor kAffinity, which weigh pairs of nodes.
  std::optional<Candidate> Choose(const LegCriteria& filters, const LegNeeds& needs,
                                  absl::Span<const kv::BlockHash> hashes,
                                  absl::Span<const PrefixIndex::Match> holders, Admits admits);

 private:
  // The nodes that may take the leg, by node id.
  std::vector<Candidate> Allowed(const LegCriteria& filters, const LegNeeds& needs,
                                 absl::Span<const kv::BlockHash> hashes, Admits admits) const;
  std::optional<Candidate> LeastLoaded(const LegCriteria& filters, const LegNeeds& needs,
                                       absl::Span<const kv::BlockHash> hashes, Admits admits) const;
  std::optional<Candidate> LongestPrefix(const LegCriteria& filters, const LegNeeds& needs,
                                         absl::Span<const PrefixIndex::Match> holders,
                                         Admits admits) const;
  // REQUIRES (both): `allowed` is not empty.
  const Candidate& NextInTurn(NodeGroup group, absl::Span<const Candidate> allowed);
  static const Candidate& ByHash(const kv::BlockHash& first, absl::Span<const Candidate> allowed);

  const PlacementPolicy policy_;
  const Fleet& fleet_;
  const CandidateFinder& finder_;
  Random& random_;
  std::array<NodeId, kNodeGroups> last_;
};

}  // namespace tandem::router
