#include "router/placement/leg_chooser.h"

#include <algorithm>

namespace tandem::router {
namespace {

// FNV-1a, then a finaliser: the same on every router, unlike absl::Hash.
uint64_t HashOf(absl::string_view text, uint64_t seed) {
  uint64_t hash = 0xcbf29ce484222325 ^ seed;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  hash = (hash ^ (hash >> 33)) * 0xff51afd7ed558ccd;
  return hash ^ (hash >> 33);
}

}  // namespace

std::vector<Candidate> LegChooser::Allowed(const LegCriteria& filters, const LegNeeds& needs,
                                           absl::Span<const kv::BlockHash> hashes,
                                           Admits admits) const {
  std::vector<Candidate> allowed;
  for (const Node* node : fleet_.nodes()) {
    if (node->group() != GroupOf(needs.role) || !admits(*node)) continue;
    const Candidate candidate = finder_.Of(*node, needs, hashes);
    if (filters.Allows(needs, candidate)) allowed.push_back(candidate);
  }
  return allowed;
}

std::optional<Candidate> LegChooser::LeastLoaded(const LegCriteria& filters, const LegNeeds& needs,
                                                 absl::Span<const kv::BlockHash> hashes,
                                                 Admits admits) const {
  std::optional<Candidate> found;
  fleet_.order().VisitByLoad(GroupOf(needs.role), [&](const Node& node) {
    const Candidate candidate = finder_.Of(node, needs, hashes);
    if (admits(node) && filters.Allows(needs, candidate)) found = candidate;
    return !found.has_value();
  });
  return found;
}

std::optional<Candidate> LegChooser::LongestPrefix(const LegCriteria& filters,
                                                   const LegNeeds& needs,
                                                   absl::Span<const PrefixIndex::Match> holders,
                                                   Admits admits) const {
  for (const PrefixIndex::Match& match : holders) {  // longest first, equal ones at random
    const Candidate candidate = CandidateFinder::Of(*fleet_.At(match.slot), needs, match.blocks);
    if (admits(*candidate.node) && filters.Allows(needs, candidate)) return candidate;
  }
  return std::nullopt;
}

const Candidate& LegChooser::NextInTurn(NodeGroup group, absl::Span<const Candidate> allowed) {
  const auto next = std::find_if(allowed.begin(), allowed.end(), [&](const Candidate& candidate) {
    return last_[group] < candidate.node->id;
  });
  const Candidate& chosen = next == allowed.end() ? allowed.front() : *next;
  last_[group] = chosen.node->id;
  return chosen;
}

// Rendezvous hashing (Thaler and Ravishankar, 1998): each node draws a number with the prompt's
// beginning, and the highest wins. When a node joins or leaves, only its own prompts move.
const Candidate& LegChooser::ByHash(const kv::BlockHash& first,
                                    absl::Span<const Candidate> allowed) {
  const auto draw = [&](const Candidate& candidate) {
    return HashOf(candidate.node->id.value(), first.high ^ first.low);
  };
  return *std::max_element(
      allowed.begin(), allowed.end(),
      [&](const Candidate& a, const Candidate& b) { return draw(a) < draw(b); });
}

std::optional<Candidate> LegChooser::Choose(const LegCriteria& filters, const LegNeeds& needs,
                                            absl::Span<const kv::BlockHash> hashes,
                                            absl::Span<const PrefixIndex::Match> holders,
                                            Admits admits) {
  if (policy_ == PlacementPolicy::kLeastLoaded) return LeastLoaded(filters, needs, hashes, admits);
  if (policy_ == PlacementPolicy::kPrefixOnly)
    if (const auto found = LongestPrefix(filters, needs, holders, admits)) return found;
  const std::vector<Candidate> allowed = Allowed(filters, needs, hashes, admits);
  if (allowed.empty()) return std::nullopt;
  if (policy_ == PlacementPolicy::kRoundRobin) return NextInTurn(GroupOf(needs.role), allowed);
  if (policy_ == PlacementPolicy::kConsistentHash && !hashes.empty())
    return ByHash(hashes[0], allowed);
  return allowed[random_.Below(allowed.size())];
}

}  // namespace tandem::router
