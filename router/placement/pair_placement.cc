#include "router/placement/pair_placement.h"

#include <algorithm>

#include "router/placement/accepts_work.h"
#include "router/placement/could_ever_fit.h"
#include "router/placement/not_kept_for_older.h"

namespace tandem::router {
namespace {

// Pairs are weighed among the best of each side: enough to find a good pair, and a bound on the
// work.
constexpr size_t kBestOfEach = 8;
// Shared memory moves KV at memcpy speed, TCP at about half of it: a tie breaker, not a reason.
constexpr double kSameHostBonus = 0.05;

LegNeeds NeedsOf(const PlacementRequest& request, v1::NodeRole role) {
  LegNeeds needs;
  needs.role = role;
  needs.prompt_tokens = request.prompt_tokens;
  // A prefill node holds the prompt and the first token's row, never the answer.
  needs.tokens_total = role == v1::NODE_ROLE_PREFILL ? request.prompt_tokens : request.tokens_total;
  needs.now = request.now;
  needs.failed = request.failed;
  needs.kept = request.kept;
  return needs;
}

}  // namespace

PairPlacement::PairPlacement(const Options& options, const Fleet& fleet, const PrefixIndex& index,
                             Random& random)
    : options_(options), fleet_(fleet), index_(index), random_(random) {}

std::vector<PairPlacement::Scored> PairPlacement::Candidates(
    const LegPolicy& policy, const LegNeeds& needs, absl::Span<const kv::BlockHash> hashes) const {
  const std::vector<PrefixIndex::Match> matches = index_.LongestPrefixes(hashes);
  std::vector<Scored> scored;
  for (const Node* node : fleet_.nodes()) {
    Scored entry{{node, 0}, 0};
    const auto match =
        std::lower_bound(matches.begin(), matches.end(), node->slot,
                         [](const PrefixIndex::Match& m, NodeSlot slot) { return m.slot < slot; });
    // The last prompt token is always computed, so that there is a row to sample from.
    if (match != matches.end() && match->slot == node->slot)
      entry.candidate.cached_tokens = std::min<int64_t>(
          static_cast<int64_t>(match->blocks) * node->block_tokens, needs.prompt_tokens - 1);
    if (!policy.Allows(needs, entry.candidate)) continue;
    entry.score = policy.Score(needs, entry.candidate);
    scored.push_back(entry);
  }
  if (scored.size() > kBestOfEach && !options_.pick_power_of_two) {
    // Stable: equal scores stay in order of node id.
    std::stable_sort(scored.begin(), scored.end(),
                     [](const Scored& a, const Scored& b) { return a.score > b.score; });
    scored.resize(kBestOfEach);
  }
  return scored;
}

size_t PairPlacement::Pick(absl::Span<const double> scores) const {
  return options_.pick_power_of_two ? PickOfTwo(scores, random_) : PickMax(scores);
}

double PairPlacement::PrefillScore(const Scored& prefill, const Node& decode) const {
  const Node& node = *prefill.candidate.node;
  const bool same_host = !node.host.empty() && node.host == decode.host;
  return std::min(1.0, prefill.score * (1.0 - kSameHostBonus) + (same_host ? kSameHostBonus : 0));
}

std::optional<PlacementFailure> PairPlacement::Place(const PlacementRequest& request,
                                                     Placement& placement) const {
  const LegNeeds decode_needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  const std::vector<Scored> decodes = Candidates(decode_policy_, decode_needs, request.hashes);
  if (decodes.empty()) return WhyNot(decode_needs);
  const std::vector<Scored> prefills =
      Candidates(prefill_policy_, NeedsOf(request, v1::NODE_ROLE_PREFILL), request.hashes);

  std::vector<double> scores;
  std::vector<size_t> prefill_of;  // prefills.size() = none
  for (const Scored& decode : decodes) {
    // The rest of the prompt is short enough for the decode node itself, so the prefill side costs
    // nothing. A prefill node is still chosen, in case the cache holds less than the index says.
    const bool local =
        decode.candidate.uncached_tokens(decode_needs) <= options_.local_prefill_tokens_max;
    size_t best = prefills.size();
    double best_score = 0;
    for (size_t p = 0; p < prefills.size(); ++p) {
      if (Fleet::InBackoff(*prefills[p].candidate.node, *decode.candidate.node, request.now))
        continue;
      const double score = PrefillScore(prefills[p], *decode.candidate.node);
      if (best != prefills.size() && score <= best_score) continue;
      best = p;
      best_score = score;
    }
    scores.push_back((decode.score + (local ? 1.0 : best_score)) / 2);
    prefill_of.push_back(best);
  }
  const size_t picked = Pick(scores);
  placement = {};
  placement.decode = decodes[picked].candidate.node->key;
  placement.decode_cached_tokens = decodes[picked].candidate.cached_tokens;
  if (const size_t p = prefill_of[picked]; p != prefills.size()) {
    placement.prefill = prefills[p].candidate.node->key;
    placement.prefill_cached_tokens = prefills[p].candidate.cached_tokens;
    placement.local_prefill_tokens_max = options_.local_prefill_tokens_max;
  }
  return std::nullopt;
}

bool PairPlacement::PlaceBeside(const PlacementRequest& request, NodeKey decode,
                                Placement& placement) const {
  const Node* node = fleet_.Find(decode);
  if (node == nullptr) return false;
  const int64_t full_blocks = (request.prompt_tokens - 1) / node->block_tokens;
  const Candidate candidate{node, full_blocks * node->block_tokens};
  LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  needs.kept = nullptr;  // sequences that run there already share most of their blocks with it
  if (!decode_policy_.Allows(needs, candidate)) return false;
  placement = {};
  placement.decode = decode;
  placement.decode_cached_tokens = candidate.cached_tokens;
  // The node may no longer hold the prefix. Then a prefill node computes the prompt, if there is
  // one.
  if (PlacePrefill(request, decode).has_value())
    placement.local_prefill_tokens_max =
        std::max(options_.local_prefill_tokens_max, node->block_tokens);
  return true;
}

std::optional<PairPlacement::PrefillPlace> PairPlacement::PlacePrefill(
    const PlacementRequest& request, NodeKey decode) const {
  const Node* decode_node = fleet_.Find(decode);
  if (decode_node == nullptr) return std::nullopt;
  std::vector<Scored> prefills =
      Candidates(prefill_policy_, NeedsOf(request, v1::NODE_ROLE_PREFILL), request.hashes);
  prefills.erase(std::remove_if(prefills.begin(), prefills.end(),
                                [&](const Scored& prefill) {
                                  return Fleet::InBackoff(*prefill.candidate.node, *decode_node,
                                                          request.now);
                                }),
                 prefills.end());
  if (prefills.empty()) return std::nullopt;
  std::vector<double> scores;
  for (const Scored& prefill : prefills) scores.push_back(PrefillScore(prefill, *decode_node));
  const Candidate& picked = prefills[Pick(scores)].candidate;
  return PrefillPlace{picked.node->key, picked.cached_tokens};
}

std::optional<NodeKey> PairPlacement::NodeToKeep(const PlacementRequest& request) const {
  const LegNeeds needs = NeedsOf(request, v1::NODE_ROLE_DECODE);
  const Node* best = nullptr;
  for (const Node* node : fleet_.nodes()) {
    const Candidate candidate{node, 0};
    if (!AcceptsWork(needs, candidate) || !CouldEverFit(needs, candidate) ||
        !NotKeptForOlder(needs, candidate))
      continue;
    if (best == nullptr || node->blocks_available() > best->blocks_available()) best = node;
  }
  return best == nullptr ? std::nullopt : std::optional<NodeKey>(best->key);
}

PlacementFailure PairPlacement::WhyNot(const LegNeeds& needs) const {
  bool any = false, fits = false;
  for (const Node* node : fleet_.nodes()) {
    const Candidate candidate{node, 0};
    if (!AcceptsWork(needs, candidate)) continue;
    any = true;
    if (CouldEverFit(needs, candidate)) fits = true;
  }
  if (!any) return PlacementFailure::kNoDecodeNode;
  return fits ? PlacementFailure::kNoRoom : PlacementFailure::kNeverFits;
}

}  // namespace tandem::router
