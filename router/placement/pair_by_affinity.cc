// The policy `affinity`: implements these members of PairPlacement
// (router/placement/pair_placement.h).
#include <algorithm>

#include "router/placement/pair_placement.h"

namespace tandem::router {

std::vector<AffinityPlacement::Scored> PairPlacement::ScoredCandidates(
    const LegCriteria& criteria, const LegNeeds& needs, absl::Span<const kv::BlockHash> hashes,
    const PrefixIndex::Matches& holders) const {
  std::vector<AffinityPlacement::Scored> scored;
  for (const Candidate& candidate :
       finder_.Find(criteria, needs, hashes, holders[GroupOf(needs.role)]))
    scored.push_back({candidate, criteria.Score(needs, candidate)});
  return scored;
}

std::optional<PlacementFailure> PairPlacement::PlaceByAffinity(const PlacementRequest& request,
                                                               Placement& placement) {
  using Scored = AffinityPlacement::Scored;
  const LegNeeds decode_needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  const PrefixIndex::Matches holders = Holders(request.hashes);
  std::vector<Scored> decodes =
      ScoredCandidates(decode_criteria_, decode_needs, request.hashes, holders);
  if (decodes.empty()) return WhyNot(decode_needs);
  const auto computes_itself = [&](const Candidate& decode) {
    return ComputesItself(decode_needs, decode);
  };
  const LegNeeds prefill_needs = PrefillNeeds(request);
  if (PrefillNodesBusy(prefill_needs)) {
    std::erase_if(decodes,
                  [&](const Scored& decode) { return !computes_itself(decode.candidate); });
    if (decodes.empty()) return PlacementFailure::kPrefillBusy;
  }
  const std::vector<Scored> prefills =
      ScoredCandidates(prefill_criteria_, prefill_needs, request.hashes, holders);
  const AffinityPlacement::Choice choice =
      by_affinity_.Choose(decodes, prefills, computes_itself, request.now);
  const Candidate& decode = decodes[choice.decode].candidate;
  placement = {};
  placement.decode = decode.node->key;
  placement.decode_cached_tokens = decode.cached_tokens;
  if (choice.prefill.has_value()) {
    const Candidate& prefill = prefills[*choice.prefill].candidate;
    SetPrefill(PrefillPlace{prefill.node->key, prefill.cached_tokens}, placement);
  }
  const auto add_weighed = [&](v1::PlacementDecision& decision) {
    const auto add = [&](const LegCriteria& criteria, v1::NodeRole role, const Scored& scored,
                         double pair_score, PlacementCandidates& list) {
      AffinityPlacement::Describe(criteria, NeedsOf(request, role), scored, pair_score,
                                  AddWeighed(scored.candidate, placement, list));
    };
    for (size_t i = 0; i < decodes.size(); ++i)
      add(decode_criteria_, v1::NODE_ROLE_DECODE, decodes[i], choice.decode_scores[i],
          *decision.mutable_decode_nodes());
    for (size_t i = 0; i < prefills.size(); ++i)
      add(prefill_criteria_, v1::NODE_ROLE_PREFILL, prefills[i], choice.prefill_scores[i],
          *decision.mutable_prefill_nodes());
  };
  Explain(request, add_weighed, placement);
  return std::nullopt;
}

std::optional<PairPlacement::PrefillPlace> PairPlacement::PrefillByAffinity(
    const PlacementRequest& request, const Node& decode) {
  const std::vector<AffinityPlacement::Scored> prefills =
      ScoredCandidates(prefill_criteria_, NeedsOf(request, v1::NODE_ROLE_PREFILL), request.hashes,
                       Holders(request.hashes));
  const std::optional<size_t> chosen = by_affinity_.ChoosePrefill(prefills, decode, request.now);
  if (!chosen.has_value()) return std::nullopt;
  const Candidate& candidate = prefills[*chosen].candidate;
  return PrefillPlace{candidate.node->key, candidate.cached_tokens};
}

}  // namespace tandem::router
