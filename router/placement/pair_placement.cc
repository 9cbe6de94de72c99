#include "router/placement/pair_placement.h"

#include <algorithm>

#include "router/placement/not_kept_for_older.h"
#include "router/placement/starts_in_time.h"

namespace tandem::router {
namespace {

// Shared memory moves KV at memcpy speed, TCP at about half of it: a tie breaker, not a reason.
constexpr double kSameHostBonus = 0.05;
// The score of a pair that may not be chosen now; others are at least 0.
constexpr double kNotAllowed = -1;

}  // namespace

LegNeeds PairPlacement::NeedsOf(const PlacementRequest& request, v1::NodeRole role) {
  LegNeeds needs;
  needs.role = role;
  needs.prompt_tokens = request.prompt_tokens;
  // A prefill node holds the prompt and the first token's row, never the answer.
  needs.tokens_total = role == v1::NODE_ROLE_PREFILL ? request.prompt_tokens : request.tokens_total;
  needs.now = request.now;
  needs.urgency = request.urgency;
  needs.failed = request.failed;
  needs.kept = request.kept;
  return needs;
}

PairPlacement::PairPlacement(const Options& options, const Fleet& fleet, const PrefixIndex& index,
                             Random& random)
    : options_(options),
      fleet_(fleet),
      index_(index),
      random_(random),
      finder_(fleet, index),
      chooser_(options.policy, fleet, finder_, random),
      by_cost_(random) {}

PrefixIndex::Matches PairPlacement::Holders(absl::Span<const kv::BlockHash> hashes) const {
  if (hashes.empty() || fleet_.empty()) return {};
  const auto from = static_cast<NodeSlot>(random_.Below(fleet_.slots()));
  return index_.DeepestHolders(hashes, CandidateFinder::kHolders, from);
}

std::vector<PairPlacement::Scored> PairPlacement::Candidates(
    const LegPolicy& policy, const LegNeeds& needs, absl::Span<const kv::BlockHash> hashes,
    const PrefixIndex::Matches& holders) const {
  std::vector<Scored> scored;
  for (const Candidate& candidate :
       finder_.Find(policy, needs, hashes, holders[GroupOf(needs.role)]))
    scored.push_back({candidate, policy.Score(needs, candidate)});
  return scored;
}

double PairPlacement::PrefillScore(const Scored& prefill, const Node& decode) const {
  const Node& node = *prefill.candidate.node;
  const bool same_host = !node.host.empty() && node.host == decode.host;
  return std::min(1.0, prefill.score * (1.0 - kSameHostBonus) + (same_host ? kSameHostBonus : 0));
}

std::vector<double> PairPlacement::PrefillScores(absl::Span<const Scored> prefills,
                                                 const Node& decode, absl::Time now) const {
  std::vector<double> scores;
  for (const Scored& prefill : prefills)
    scores.push_back(Fleet::InBackoff(*prefill.candidate.node, decode, now)
                         ? kNotAllowed
                         : PrefillScore(prefill, decode));
  return scores;
}

LegNeeds PairPlacement::PrefillNeeds(const PlacementRequest& request) const {
  LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_PREFILL);
  needs.prefill_wait_max = options_.prefill_wait_max;
  return needs;
}

bool PairPlacement::PrefillNodesBusy(const LegNeeds& needs) const {
  bool busy = false;
  fleet_.order().VisitByLoad(kPrefillNodes, [&](const Node& node) {
    busy = !StartsInTime(needs, {&node, 0});
    return false;
  });
  return busy;
}

bool PairPlacement::ComputesItself(const LegNeeds& needs, const Candidate& decode) const {
  return decode.uncached_tokens(needs) <= options_.local_prefill_tokens_max;
}

std::optional<PlacementFailure> PairPlacement::Place(const PlacementRequest& request,
                                                     Placement& placement) {
  if (options_.policy == PlacementPolicy::kCost) return PlaceByCost(request, placement);
  if (options_.policy != PlacementPolicy::kAffinity) return PlaceApart(request, placement);
  const LegNeeds decode_needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  const PrefixIndex::Matches holders = Holders(request.hashes);
  std::vector<Scored> decodes = Candidates(decode_policy_, decode_needs, request.hashes, holders);
  if (decodes.empty()) return WhyNot(decode_needs);
  const LegNeeds prefill_needs = PrefillNeeds(request);
  if (PrefillNodesBusy(prefill_needs)) {
    decodes.erase(std::remove_if(decodes.begin(), decodes.end(),
                                 [&](const Scored& decode) {
                                   return !ComputesItself(decode_needs, decode.candidate);
                                 }),
                  decodes.end());
    if (decodes.empty()) return PlacementFailure::kPrefillBusy;
  }
  const std::vector<Scored> prefills =
      Candidates(prefill_policy_, prefill_needs, request.hashes, holders);

  std::vector<double> scores;
  for (const Scored& decode : decodes) {
    // The rest of the prompt is short enough for the decode node itself, so the prefill side costs
    // nothing. A prefill node is still chosen, in case the cache holds less than the index says.
    const bool local = ComputesItself(decode_needs, decode.candidate);
    double prefill_score = 1.0;
    if (!local) {
      prefill_score = 0;
      for (const double score : PrefillScores(prefills, *decode.candidate.node, request.now))
        prefill_score = std::max(prefill_score, score);
    }
    scores.push_back((decode.score + prefill_score) / 2);
  }
  const Candidate& decode = decodes[PickBest(scores, random_)].candidate;
  placement = {};
  placement.decode = decode.node->key;
  placement.decode_cached_tokens = decode.cached_tokens;
  SetPrefill(PickPrefill(prefills, *decode.node, request.now), placement);
  Explain(request, decodes, scores, prefills, placement);
  return std::nullopt;
}

void PairPlacement::SetPrefill(const std::optional<PrefillPlace>& prefill,
                               Placement& placement) const {
  if (!prefill.has_value()) return;
  placement.prefill = prefill->node;
  placement.prefill_cached_tokens = prefill->cached_tokens;
  placement.local_prefill_tokens_max = options_.local_prefill_tokens_max;
}

std::optional<PlacementFailure> PairPlacement::PlaceApart(const PlacementRequest& request,
                                                          Placement& placement) {
  const LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  const PrefixIndex::Matches holders = Holders(request.hashes);
  const auto decode = chooser_.Choose(decode_policy_, needs, request.hashes, holders[kDecodeNodes],
                                      [](const Node&) { return true; });
  if (!decode.has_value()) return WhyNot(needs);
  if (!ComputesItself(needs, *decode) && PrefillNodesBusy(PrefillNeeds(request)))
    return PlacementFailure::kPrefillBusy;
  placement = {};
  placement.decode = decode->node->key;
  placement.decode_cached_tokens = decode->cached_tokens;
  SetPrefill(ChoosePrefill(request, *decode->node, holders), placement);
  Explain(request, {}, {}, {}, placement);
  return std::nullopt;
}

void PairPlacement::Explain(const PlacementRequest& request, absl::Span<const Scored> decodes,
                            absl::Span<const double> pair_scores, absl::Span<const Scored> prefills,
                            Placement& placement) const {
  if (!options_.explains) return;
  auto decision = std::make_shared<v1::PlacementDecision>();
  decision->set_policy(std::string(NameOf(options_.policy)));
  decision->set_prompt_tokens(request.prompt_tokens);
  decision->set_local_prefill_tokens_max(placement.local_prefill_tokens_max);
  const auto add = [&](auto& list, const LegPolicy& policy, v1::NodeRole role, const Scored& scored,
                       double pair_score) {
    v1::PlacementCandidate& candidate = *list.Add();
    candidate.set_node_id(scored.candidate.node->id.value());
    candidate.set_cached_tokens(scored.candidate.cached_tokens);
    candidate.set_chosen(scored.candidate.node->key == placement.decode ||
                         scored.candidate.node->key == placement.prefill);
    const LegNeeds needs = NeedsOf(request, role);
    for (const WeightedScorer& weighted : policy.scorers) {
      v1::PlacementScore& score = *candidate.add_scores();
      score.set_name(weighted.name);
      score.set_score(weighted.scorer(needs, scored.candidate));
      score.set_weight(weighted.weight);
    }
    candidate.set_score(scored.score);
    candidate.set_pair_score(pair_score);
  };
  for (size_t i = 0; i < decodes.size(); ++i) {
    add(*decision->mutable_decode_nodes(), decode_policy_, v1::NODE_ROLE_DECODE, decodes[i],
        pair_scores[i]);
  }
  const Node& decode = *fleet_.Find(placement.decode);
  const std::vector<double> prefill_scores = PrefillScores(prefills, decode, request.now);
  for (size_t i = 0; i < prefills.size(); ++i) {
    add(*decision->mutable_prefill_nodes(), prefill_policy_, v1::NODE_ROLE_PREFILL, prefills[i],
        prefill_scores[i]);
  }
  AddChosen(placement, *decision);
  placement.decision = std::move(decision);
}

// The chosen nodes where nothing was weighed.
void PairPlacement::AddChosen(const Placement& placement, v1::PlacementDecision& decision) const {
  const auto add = [&](auto& list, NodeKey key, int64_t cached_tokens) {
    v1::PlacementCandidate& candidate = *list.Add();
    candidate.set_node_id(fleet_.Find(key)->id.value());
    candidate.set_cached_tokens(cached_tokens);
    candidate.set_chosen(true);
  };
  if (decision.decode_nodes().empty()) {
    add(*decision.mutable_decode_nodes(), placement.decode, placement.decode_cached_tokens);
  }
  if (decision.prefill_nodes().empty() && placement.prefill.has_value()) {
    add(*decision.mutable_prefill_nodes(), *placement.prefill, placement.prefill_cached_tokens);
  }
}

std::optional<PairPlacement::PrefillPlace> PairPlacement::ChoosePrefill(
    const PlacementRequest& request, const Node& decode, const PrefixIndex::Matches& holders) {
  const auto chosen = chooser_.Choose(
      prefill_policy_, NeedsOf(request, v1::NODE_ROLE_PREFILL), request.hashes,
      holders[kPrefillNodes],
      [&](const Node& node) { return !Fleet::InBackoff(node, decode, request.now); });
  if (!chosen.has_value()) return std::nullopt;
  return PrefillPlace{chosen->node->key, chosen->cached_tokens};
}

bool PairPlacement::PlaceBeside(const PlacementRequest& request, NodeKey decode,
                                Placement& placement) {
  const Node* node = fleet_.Find(decode);
  if (node == nullptr) return false;
  const int64_t full_blocks = (request.prompt_tokens - 1) / node->block_tokens;
  const Candidate candidate{node, full_blocks * node->block_tokens};
  LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  needs.kept = nullptr;  // sequences that run there already share most of their blocks with it
  if (!decode_policy_.Allows(needs, candidate)) return false;
  if (options_.policy == PlacementPolicy::kCost) {
    const PredictedTimes predicted(fleet_, index_, PromptOf(request), PrefixIndex::Matches());
    std::vector<Candidate> in_time = {candidate};
    DropSlow(request, predicted, in_time);
    if (in_time.empty()) return false;
  }
  placement = {};
  placement.decode = decode;
  placement.beside = true;
  placement.decode_cached_tokens = candidate.cached_tokens;
  // The node may no longer hold the prefix. Then a prefill node computes the prompt, if there is
  // one.
  if (PlacePrefill(request, decode).has_value())
    placement.local_prefill_tokens_max =
        std::max(options_.local_prefill_tokens_max, node->block_tokens);
  if (options_.explains) {
    auto decision = std::make_shared<v1::PlacementDecision>();
    decision->set_policy(std::string(NameOf(options_.policy)));
    decision->set_prompt_tokens(request.prompt_tokens);
    decision->set_local_prefill_tokens_max(placement.local_prefill_tokens_max);
    decision->set_beside(true);
    AddChosen(placement, *decision);
    placement.decision = std::move(decision);
  }
  return true;
}

std::optional<PairPlacement::PrefillPlace> PairPlacement::PickPrefill(
    absl::Span<const Scored> prefills, const Node& decode, absl::Time now) const {
  const std::vector<double> scores = PrefillScores(prefills, decode, now);
  if (scores.empty()) return std::nullopt;
  const size_t picked = PickBest(scores, random_);
  if (scores[picked] == kNotAllowed) return std::nullopt;
  const Candidate& candidate = prefills[picked].candidate;
  return PrefillPlace{candidate.node->key, candidate.cached_tokens};
}

std::optional<PairPlacement::PrefillPlace> PairPlacement::PlacePrefill(
    const PlacementRequest& request, NodeKey decode) {
  const Node* decode_node = fleet_.Find(decode);
  if (decode_node == nullptr) return std::nullopt;
  if (options_.policy == PlacementPolicy::kCost) return PrefillByCost(request, *decode_node);
  if (options_.policy != PlacementPolicy::kAffinity)
    return ChoosePrefill(request, *decode_node, Holders(request.hashes));
  const std::vector<Scored> prefills =
      Candidates(prefill_policy_, NeedsOf(request, v1::NODE_ROLE_PREFILL), request.hashes,
                 Holders(request.hashes));
  return PickPrefill(prefills, *decode_node, request.now);
}

std::optional<NodeKey> PairPlacement::NodeToKeep(const PlacementRequest& request) const {
  const LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  const Node* best =
      fleet_.order().DecodeNodeWithMostRoom(needs.tokens_total, [&](const Node* node) {
        return !NotKeptForOlder(needs, {node, 0});
      });
  return best == nullptr ? std::nullopt : std::optional<NodeKey>(best->key);
}

PlacementFailure PairPlacement::WhyNot(const LegNeeds& needs) const {
  const LoadOrder& order = fleet_.order();
  if (order.size(kDecodeNodes) == 0) return PlacementFailure::kNoDecodeNode;
  return needs.tokens_total <= order.decode_capacity_tokens() ? PlacementFailure::kNoRoom
                                                              : PlacementFailure::kNeverFits;
}

}  // namespace tandem::router
