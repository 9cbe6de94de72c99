#include "router/placement/pair_placement.h"

#include <algorithm>
#include <string>

#include "router/placement/not_kept_for_older.h"
#include "router/placement/starts_in_time.h"

namespace tandem::router {
namespace {

void NothingWeighed(v1::PlacementDecision&) {}

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
      by_affinity_(random),
      by_cost_(random),
      apart_(options.policy, fleet, finder_, random) {}

PrefixIndex::Matches PairPlacement::Holders(absl::Span<const kv::BlockHash> hashes) const {
  if (hashes.empty() || fleet_.empty()) return {};
  const auto from = static_cast<NodeSlot>(random_.Below(fleet_.slots()));
  return index_.DeepestHolders(hashes, CandidateFinder::kHolders, from);
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
  if (options_.policy == PlacementPolicy::kAffinity) return PlaceByAffinity(request, placement);
  return PlaceApart(request, placement);
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
  const auto decode = apart_.Choose(decode_criteria_, needs, request.hashes, holders[kDecodeNodes],
                                    [](const Node&) { return true; });
  if (!decode.has_value()) return WhyNot(needs);
  if (!ComputesItself(needs, *decode) && PrefillNodesBusy(PrefillNeeds(request)))
    return PlacementFailure::kPrefillBusy;
  placement = {};
  placement.decode = decode->node->key;
  placement.decode_cached_tokens = decode->cached_tokens;
  SetPrefill(PrefillApart(request, *decode->node, holders), placement);
  Explain(request, NothingWeighed, placement);
  return std::nullopt;
}

void PairPlacement::Explain(const PlacementRequest& request,
                            absl::FunctionRef<void(v1::PlacementDecision&)> add_weighed,
                            Placement& placement) const {
  if (!options_.explains) return;
  auto decision = std::make_shared<v1::PlacementDecision>();
  decision->set_policy(std::string(NameOf(options_.policy)));
  decision->set_prompt_tokens(request.prompt_tokens);
  decision->set_local_prefill_tokens_max(placement.local_prefill_tokens_max);
  decision->set_beside(placement.beside);
  add_weighed(*decision);
  AddChosen(placement, *decision);
  placement.decision = std::move(decision);
}

v1::PlacementCandidate& PairPlacement::AddWeighed(const Candidate& candidate,
                                                  const Placement& placement,
                                                  PlacementCandidates& list) {
  v1::PlacementCandidate& added = *list.Add();
  added.set_node_id(candidate.node->id.value());
  added.set_cached_tokens(candidate.cached_tokens);
  added.set_host_memory_tokens(candidate.stored.host);
  added.set_disk_tokens(candidate.stored.disk);
  added.set_chosen(candidate.node->key == placement.decode ||
                   candidate.node->key == placement.prefill);
  return added;
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

std::optional<PairPlacement::PrefillPlace> PairPlacement::PrefillApart(
    const PlacementRequest& request, const Node& decode, const PrefixIndex::Matches& holders) {
  const auto chosen = apart_.Choose(prefill_criteria_, NeedsOf(request, v1::NODE_ROLE_PREFILL),
                                    request.hashes, holders[kPrefillNodes], [&](const Node& node) {
                                      return !Fleet::InBackoff(node, decode, request.now);
                                    });
  if (!chosen.has_value()) return std::nullopt;
  return PrefillPlace{chosen->node->key, chosen->cached_tokens};
}

bool PairPlacement::PlaceBeside(const PlacementRequest& request, NodeKey decode,
                                Placement& placement) {
  const Node* node = fleet_.Find(decode);
  if (node == nullptr) return false;
  const int64_t shared_blocks = (request.shared_tokens - 1) / node->block_tokens;
  Candidate candidate{node, shared_blocks * node->block_tokens};
  LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  needs.kept = nullptr;  // sequences that run there already share most of their blocks with it
  // An answer that goes on may have begun there.
  if (request.prompt_tokens > request.shared_tokens)
    candidate.cached_tokens =
        std::max(candidate.cached_tokens, finder_.Of(*node, needs, request.hashes).cached_tokens);
  if (!decode_criteria_.Allows(needs, candidate)) return false;
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
  Explain(request, NothingWeighed, placement);
  return true;
}

std::optional<PairPlacement::PrefillPlace> PairPlacement::PlacePrefill(
    const PlacementRequest& request, NodeKey decode) {
  const Node* decode_node = fleet_.Find(decode);
  if (decode_node == nullptr) return std::nullopt;
  if (options_.policy == PlacementPolicy::kCost) return PrefillByCost(request, *decode_node);
  if (options_.policy == PlacementPolicy::kAffinity)
    return PrefillByAffinity(request, *decode_node);
  return PrefillApart(request, *decode_node, Holders(request.hashes));
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
