// The policy `cost`: implements these members of PairPlacement (router/placement/pair_placement.h).
#include <algorithm>
#include <cmath>

#include "router/placement/pair_placement.h"
#include "router/placement/stored_tokens.h"

namespace tandem::router {

PredictedTimes::Prompt PairPlacement::PromptOf(const PlacementRequest& request) const {
  return {.tokens = request.prompt_tokens,
          .tokens_total = request.tokens_total,
          .fetch_tokens_min = fleet_.mixes_numerics() ? 0 : options_.fetch_tokens_min,
          .short_tokens = options_.local_prefill_tokens_max,
          .now = request.now,
          .urgency = request.urgency,
          .hashes = request.hashes};
}

std::vector<Candidate> PairPlacement::CostCandidates(const LegCriteria& criteria,
                                                     const LegNeeds& needs,
                                                     absl::Span<const kv::BlockHash> hashes,
                                                     const PrefixIndex::Matches& holders) const {
  std::vector<Candidate> found =
      finder_.Find(criteria, needs, hashes, holders[GroupOf(needs.role)]);
  for (Candidate& candidate : found)
    candidate.stored = StoredTokens(index_, *candidate.node, candidate.cached_tokens, hashes);
  return found;
}

void PairPlacement::DropSlow(const PlacementRequest& request, const PredictedTimes& predicted,
                             std::vector<Candidate>& decodes) {
  std::erase_if(decodes, [&](const Candidate& decode) {
    const Node& node = *decode.node;
    const absl::Duration others = node.step_goal();
    if (request.heeds_step_goals && others < request.step_within &&
        absl::Microseconds(predicted.Decoding(decode).step_us) > others)
      return true;
    if (request.step_within == absl::InfiniteDuration()) return false;
    // Its step is as short as it gets for this sequence if nothing else runs there, or if the
    // sequence alone takes too long.
    const bool helps =
        node.sequences() > 0 &&
        absl::Microseconds(node.GenerateUs(1, request.prompt_tokens)) <= request.step_within;
    return helps && absl::Microseconds(predicted.Decoding(decode).step_us) > request.step_within;
  });
}

std::optional<PlacementFailure> PairPlacement::PlaceByCost(const PlacementRequest& request,
                                                           Placement& placement) {
  const LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  const PrefixIndex::Matches holders = Holders(request.hashes);
  std::vector<Candidate> decodes = CostCandidates(decode_criteria_, needs, request.hashes, holders);
  if (decodes.empty()) return WhyNot(needs);
  const PredictedTimes predicted(fleet_, index_, PromptOf(request), holders);
  DropSlow(request, predicted, decodes);
  if (decodes.empty()) return PlacementFailure::kStepsTooLong;
  const std::vector<Candidate> prefills = CostCandidates(
      prefill_criteria_, NeedsOf(request, v1::NODE_ROLE_PREFILL), request.hashes, holders);
  CostPlacement::Limits limits = {.first_token = request.first_token_within,
                                  .explains = options_.explains,
                                  .pairs_only = options_.local_prefill_tokens_max == 0};
  CostPlacement::Weighed weighed;
  auto choice = by_cost_.Choose(predicted, decodes, prefills, limits, weighed);
  if (limits.pairs_only && std::isinf(weighed.first_token_us_least)) {
    // There is no pair, in time or not.
    limits.pairs_only = false;
    choice = by_cost_.Choose(predicted, decodes, prefills, limits, weighed);
  }
  placement = {};
  placement.first_token_predicted = absl::Microseconds(weighed.first_token_us_least);
  placement.first_token_fastest = absl::Microseconds(weighed.first_token_us_fastest);
  if (!choice.has_value()) return PlacementFailure::kTooLate;
  // It is placed later, and better: when a prefill node is about to become free.
  if (choice->prefill != nullptr && options_.prefill_wait_max > absl::ZeroDuration() &&
      choice->prefill->node->knows_its_cost() &&
      absl::Microseconds(choice->prompt.wait_us) > options_.prefill_wait_max)
    return PlacementFailure::kPrefillBusy;
  placement.decode = choice->decode->node->key;
  placement.decode_cached_tokens = choice->decode->cached_tokens;
  placement.first_token_predicted = absl::Microseconds(choice->times.first_token_us);
  placement.compute_us = choice->prompt.compute_us;
  if (choice->prefill != nullptr) {
    SetPrefill(PrefillPlace{choice->prefill->node->key, choice->prefill->cached_tokens}, placement);
    // It may turn out to hold more than the index says, but was chosen not to compute as much as it
    // is known to lack.
    const int64_t lacks = request.prompt_tokens - choice->decode->cached_tokens;
    placement.local_prefill_tokens_max =
        static_cast<int32_t>(std::clamp<int64_t>(lacks - 1, 0, options_.local_prefill_tokens_max));
  } else {
    placement.local_prefill_us = choice->prompt.compute_us;
    // A node that holds less than it said by more than a block does not compute the prompt.
    if (!prefills.empty())
      placement.local_prefill_tokens_max = static_cast<int32_t>(
          std::max<int64_t>(options_.local_prefill_tokens_max,
                            choice->prompt.computed_tokens + choice->decode->node->block_tokens));
  }
  const auto add_weighed = [&](v1::PlacementDecision& decision) {
    for (const CostPlacement::Choice& each : weighed.decodes)
      CostPlacement::Describe(
          each, AddWeighed(*each.decode, placement, *decision.mutable_decode_nodes()));
    for (const CostPlacement::Choice& each : weighed.prefills)
      CostPlacement::Describe(
          each, AddWeighed(*each.prefill, placement, *decision.mutable_prefill_nodes()));
  };
  Explain(request, add_weighed, placement);
  return std::nullopt;
}

std::optional<PairPlacement::PrefillPlace> PairPlacement::PrefillByCost(
    const PlacementRequest& request, const Node& decode) {
  const PrefixIndex::Matches holders = Holders(request.hashes);
  const LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  const std::vector<Candidate> decodes = {finder_.Of(decode, needs, request.hashes)};
  const std::vector<Candidate> prefills = CostCandidates(
      prefill_criteria_, NeedsOf(request, v1::NODE_ROLE_PREFILL), request.hashes, holders);
  const PredictedTimes predicted(fleet_, index_, PromptOf(request), holders);
  CostPlacement::Weighed weighed;
  const auto choice = by_cost_.Choose(predicted, decodes, prefills, {.pairs_only = true}, weighed);
  if (!choice.has_value()) return std::nullopt;
  return PrefillPlace{choice->prefill->node->key, choice->prefill->cached_tokens};
}

}  // namespace tandem::router
