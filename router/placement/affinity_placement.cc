#include "router/placement/affinity_placement.h"

#include <algorithm>

#include "router/fleet/fleet.h"
#include "router/placement/picker.h"

namespace tandem::router {
namespace {

// Shared memory moves KV at memcpy speed, TCP at about half of it: a tie breaker, not a reason.
constexpr double kSameHostBonus = 0.05;
// The score of a pair that may not be chosen now; others are at least 0.
constexpr double kNotAllowed = -1;

// The score of the prefill side of a pair, in [0, 1].
double PrefillScore(const AffinityPlacement::Scored& prefill, const Node& decode) {
  const Node& node = *prefill.candidate.node;
  const bool same_host = !node.host.empty() && node.host == decode.host;
  return std::min(1.0, prefill.score * (1.0 - kSameHostBonus) + (same_host ? kSameHostBonus : 0));
}

// The same for all candidates; kNotAllowed for those whose KV transfers to `decode` are in backoff.
std::vector<double> PrefillScores(absl::Span<const AffinityPlacement::Scored> prefills,
                                  const Node& decode, absl::Time now) {
  std::vector<double> scores;
  for (const AffinityPlacement::Scored& prefill : prefills)
    scores.push_back(Fleet::InBackoff(*prefill.candidate.node, decode, now)
                         ? kNotAllowed
                         : PrefillScore(prefill, decode));
  return scores;
}

}  // namespace

AffinityPlacement::Choice AffinityPlacement::Choose(
    absl::Span<const Scored> decodes, absl::Span<const Scored> prefills,
    absl::FunctionRef<bool(const Candidate& decode)> computes_itself, absl::Time now) {
  Choice choice;
  for (const Scored& decode : decodes) {
    double prefill_score = 1.0;
    if (!computes_itself(decode.candidate)) {
      prefill_score = 0;
      for (const double score : PrefillScores(prefills, *decode.candidate.node, now))
        prefill_score = std::max(prefill_score, score);
    }
    choice.decode_scores.push_back((decode.score + prefill_score) / 2);
  }
  choice.decode = PickBest(choice.decode_scores, random_);
  choice.prefill_scores = PrefillScores(prefills, *decodes[choice.decode].candidate.node, now);
  choice.prefill = PickAllowed(choice.prefill_scores);
  return choice;
}

std::optional<size_t> AffinityPlacement::ChoosePrefill(absl::Span<const Scored> prefills,
                                                       const Node& decode, absl::Time now) {
  return PickAllowed(PrefillScores(prefills, decode, now));
}

std::optional<size_t> AffinityPlacement::PickAllowed(absl::Span<const double> scores) {
  if (scores.empty()) return std::nullopt;
  const size_t picked = PickBest(scores, random_);
  return scores[picked] == kNotAllowed ? std::nullopt : std::optional<size_t>(picked);
}

void AffinityPlacement::Describe(const LegCriteria& criteria, const LegNeeds& needs,
                                 const Scored& scored, double pair_score,
                                 v1::PlacementCandidate& candidate) {
  for (const WeightedScorer& weighted : criteria.scorers) {
    v1::PlacementScore& score = *candidate.add_scores();
    score.set_name(weighted.name);
    score.set_score(weighted.scorer(needs, scored.candidate));
    score.set_weight(weighted.weight);
  }
  candidate.set_score(scored.score);
  candidate.set_pair_score(pair_score);
}

}  // namespace tandem::router
