#include "router/placement/candidate_finder.h"

#include <algorithm>

namespace tandem::router {
// The candidates found so far.
class CandidateFinder::Collection {
 public:
  Collection(const LegCriteria& criteria, const LegNeeds& needs)
      : criteria_(criteria), needs_(needs) {
    found_.reserve(kHolders + kLeastLoaded);
  }

  bool Contains(const Node& node) const {
    return std::any_of(found_.begin(), found_.end(),
                       [&](const Candidate& candidate) { return candidate.node == &node; });
  }
  void AddIfAllowed(const Candidate& candidate) {
    if (criteria_.Allows(needs_, candidate)) found_.push_back(candidate);
  }
  size_t size() const { return found_.size(); }
  std::vector<Candidate> Take() { return std::move(found_); }

 private:
  const LegCriteria& criteria_;
  const LegNeeds& needs_;
  // Bound: kHolders + kLeastLoaded.
  std::vector<Candidate> found_;
};

Candidate CandidateFinder::Of(const Node& node, const LegNeeds& needs, int32_t blocks) {
  // The last prompt token is always computed, so that there is a row to sample from.
  return {&node, std::min(int64_t{blocks} * node.block_tokens, needs.prompt_tokens - 1)};
}

Candidate CandidateFinder::Of(const Node& node, const LegNeeds& needs,
                              absl::Span<const kv::BlockHash> hashes) const {
  return Of(node, needs, index_.RunOn(node.slot, hashes));
}

std::vector<Candidate> CandidateFinder::Find(const LegCriteria& criteria, const LegNeeds& needs,
                                             absl::Span<const kv::BlockHash> hashes,
                                             absl::Span<const PrefixIndex::Match> holders) const {
  Collection found(criteria, needs);
  for (const PrefixIndex::Match& match : holders)
    found.AddIfAllowed(Of(*fleet_.At(match.slot), needs, match.blocks));
  const size_t enough = found.size() + kLeastLoaded;
  const bool decode = needs.role == v1::NODE_ROLE_DECODE;
  size_t visited = 0;
  fleet_.order().VisitByLoad(GroupOf(needs.role), [&](const Node& node) {
    if (visited++ >= kVisitedMax && (decode || found.size() > 0)) return false;
    if (!found.Contains(node)) found.AddIfAllowed(Of(node, needs, hashes));
    return found.size() < enough;
  });
  if (found.size() > 0 || !decode) return found.Take();
  fleet_.order().VisitByRoom([&](const Node& node) {
    if (node.blocks_for(needs.prompt_tokens + 1) > node.blocks_available()) return false;
    found.AddIfAllowed(Of(node, needs, hashes));
    return found.size() < kLeastLoaded;
  });
  return found.Take();
}

}  // namespace tandem::router
