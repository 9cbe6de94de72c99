// Chooses the nodes of a request by weighted scores: the decode node whose own score and whose best
// prefill node's score have the highest mean, and that prefill node (LegCriteria::Score). Pairs of
// equal scores are drawn from at random.
//
// Thread safety: none; PairPlacement owns it, on the core's strand.
// Invariants: keeps no state; draws from `random` once for each leg at most.
// Cost: at most 16 nodes of each role are weighed, and at most 256 pairs.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/runtime/random.h"
#include "router/fleet/node.h"
#include "router/placement/candidate.h"
#include "router/placement/leg_criteria.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

class AffinityPlacement {
 public:
  // A node, and its score for its leg alone, in [0, 1].
  struct Scored {
    Candidate candidate;
    double score = 0;
  };
  // Indices of the candidates.
  struct Choice {
    size_t decode = 0;
    std::optional<size_t> prefill;  // none: no prefill node may send to the decode node
    // What was compared: of each decode node its score with the best prefill node, and of each
    // prefill node its score beside the chosen decode node; below 0 if it may not be chosen.
    std::vector<double> decode_scores, prefill_scores;
  };
  // `random` outlives this.
  explicit AffinityPlacement(Random& random) : random_(random) {}

  // `computes_itself`: whether a decode node computes the prompt itself, so that the prefill side
  // costs nothing. A prefill node is chosen even so, in case the decode node holds less than the
  // index says. REQUIRES: `decodes` is not empty.
  Choice Choose(absl::Span<const Scored> decodes, absl::Span<const Scored> prefills,
                absl::FunctionRef<bool(const Candidate& decode)> computes_itself, absl::Time now);
  // The index of the best prefill node for a decode leg on `decode`; nullopt if none may send to
  // it.
  std::optional<size_t> ChoosePrefill(absl::Span<const Scored> prefills, const Node& decode,
                                      absl::Time now);

  // The figures of a candidate, as `tandem why` shows them.
  static void Describe(const LegCriteria& criteria, const LegNeeds& needs, const Scored& scored,
                       double pair_score, v1::PlacementCandidate& candidate);

 private:
  // The index of the best of `scores`; nullopt if there is none, or none may be chosen.
  std::optional<size_t> PickAllowed(absl::Span<const double> scores);

  Random& random_;
};

}  // namespace tandem::router
