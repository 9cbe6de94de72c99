#include "router/core/sequence_legs.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/request/split_prompt.h"
#include "router/placement/stored_tokens.h"

namespace tandem::router {

SequenceLegs::SequenceLegs(const RequestInput& input, uint64_t number,
                           const SequenceContext& context)
    : input_(input),
      context_(context),
      commands_(input, number, context),
      prompt_(input.prompt, input.hashed),
      decode_(context, commands_),
      prefill_(context, commands_) {}

PlacementRequest SequenceLegs::MakePlacementRequest(absl::Time now) {
  PlacementRequest request;
  request.prompt_tokens = prompt_.size();
  request.shared_tokens = prompt_.size() - prompt_.delivered();
  request.tokens_total =
      static_cast<int64_t>(input_.prompt->size()) + int64_t{input_.stop->max_tokens};
  request.hashes =
      prompt_.Hashes(context_.fleet, context_.model, input_.cache_salt, context_.hasher);
  request.now = now;
  request.failed = &failed_.entries();
  return request;
}

std::optional<PlacementFailure> SequenceLegs::FindPlace(const PlaceWish& wish, absl::Time now,
                                                        Placement& placement) {
  PlacementRequest request = MakePlacementRequest(now);
  request.kept = &wish.kept;
  request.first_token_within = wish.first_token_within;
  request.step_within = wish.step_within;
  request.heeds_step_goals = wish.heeds_step_goals;
  request.urgency = wish.urgency;
  held_blocks_.reset();
  if (wish.beside.has_value()) {
    PlacementRequest beside = request;
    // The beams of a search go where their prompt is: elsewhere each would compute it again.
    if (input_.beams.has_value()) {
      beside.step_within = absl::InfiniteDuration();
      beside.heeds_step_goals = false;
    }
    if (context_.placement.PlaceBeside(beside, *wish.beside, placement)) return std::nullopt;
  }
  return context_.placement.Place(request, placement);
}

std::optional<NodeKey> SequenceLegs::NodeToKeep(const std::vector<NodeKey>& kept, absl::Time now) {
  PlacementRequest request = MakePlacementRequest(now);
  request.kept = &kept;
  return context_.placement.NodeToKeep(request);
}

int64_t SequenceLegs::HeldTokens() {
  const std::vector<kv::BlockHash>& hashes =
      prompt_.Hashes(context_.fleet, context_.model, input_.cache_salt, context_.hasher);
  const bool grew =
      !held_blocks_.has_value() ||
      (*held_blocks_ < hashes.size() && context_.index.HeldBy(kDecodeNodes, hashes[*held_blocks_]));
  if (grew) {
    const auto holders = context_.index.DeepestHolders(hashes, 1, 0)[kDecodeNodes];
    held_blocks_ = holders.empty() ? 0 : static_cast<size_t>(holders.front().blocks);
  }
  return static_cast<int64_t>(*held_blocks_) * context_.fleet.block_tokens();
}

void SequenceLegs::Start(const Placement& placement, const LegWish& wish) {
  decode_.Place(placement, prompt_.size(),
                input_.TierOr(context_.options.default_tier).StepWithin(), wish.urgency);
  TouchPrefix(placement.decode, placement.decode_cached_tokens);
  prefill_.Clear();
  int32_t local_max = placement.local_prefill_tokens_max;
  int64_t prefill_blocks = 0;
  // Beside other sequences of the request the prompt is there, or is being computed.
  bool may_fetch = !placement.beside && !wish.scores;
  const Node* keeper = retained_.has_value() ? context_.fleet.Find(retained_->node) : nullptr;
  if (keeper != nullptr) {
    PlanPrefill(keeper->key, prompt_.size(), wish.urgency);
    prefill_.MarkRetained();
    local_max = 0;
    may_fetch = false;
  } else if (placement.prefill.has_value()) {
    const Node& node = *context_.fleet.Find(*placement.prefill);
    if (!wish.scores && !was_split_)
      prefill_blocks = BlocksToLendFrom(node, *context_.fleet.Find(placement.decode));
    if (prefill_blocks > 0 || CanCompute(node)) {
      PlanPrefill(*placement.prefill, placement.prefill_cached_tokens, wish.urgency);
      may_fetch = false;
    } else {
      local_max = -1;
    }
  }
  auto holder = may_fetch ? FindHolder(placement.decode, wish.now) : std::nullopt;
  // Retained KV is asked for, however short the prompt is. The node may still compute the prompt
  // itself: it can copy it from another sequence, say, or cannot hold a lease for it.
  decode_.SendStart(input_, {.sequence = commands_.SpecOf(prompt_, wish.scores),
                             .local_prefill_tokens_max = local_max,
                             .prefill_blocks = prefill_blocks,
                             .holder = std::move(holder),
                             .first_token_within = wish.urgency.due_within});
}

int64_t SequenceLegs::BlocksToLendFrom(const Node& prefill, const Node& decode) const {
  const int64_t tokens = prompt_.size();
  const bool beyond_prefill = prefill.blocks_for(tokens) > prefill.num_blocks;
  const bool beyond_decode = decode.blocks_beyond(tokens) > 0;
  const bool alike =
      prefill.lending_unit_tokens > 0 && prefill.lending_unit_tokens == decode.lending_unit_tokens;
  if (!(beyond_prefill || beyond_decode) || !alike) return 0;
  const int64_t kept = request::SplitBlocksMax({decode.num_blocks, beyond_decode},
                                               {prefill.num_blocks, beyond_prefill});
  const int64_t lent = decode.blocks_for(tokens) + 1 - kept +
                       decode.lending_unit_tokens / std::max(1, decode.block_tokens);
  return lent <= context_.fleet.SpareBeside(prefill, decode, tokens) ? prefill.num_blocks : 0;
}

bool SequenceLegs::CanCompute(const Node& prefill) const {
  const int64_t blocks = prefill.blocks_for(prompt_.size());
  const int64_t lent_tokens = int64_t{decode_.lent_units()} * prefill.lending_unit_tokens;
  if (decode_.lent_units() > 0 && lent_tokens == 0) return false;
  return request::CanComputeSplit(blocks, lent_tokens / prefill.block_tokens, prefill.num_blocks);
}

std::optional<PairPlacement::PrefillPlace> SequenceLegs::FindPrefill(const LegWish& wish) {
  PlacementRequest request = MakePlacementRequest(wish.now);
  request.urgency = wish.urgency;
  auto place = context_.placement.PlacePrefill(request, decode_.node());
  if (place.has_value() && !CanCompute(*context_.fleet.Find(place->node))) place.reset();
  return place;
}

void SequenceLegs::PlanPrefill(NodeKey node, int64_t cached_tokens,
                               const request::Urgency& urgency) {
  prefill_.Plan(node, prompt_.size() - cached_tokens, prompt_.size(), urgency);
  TouchPrefix(node, cached_tokens);
}

void SequenceLegs::TouchPrefix(NodeKey key, int64_t cached_tokens) {
  const Node& node = *context_.fleet.Find(key);
  const absl::Span<const kv::BlockHash> hashes =
      prompt_.Hashes(context_.fleet, context_.model, input_.cache_salt, context_.hasher);
  const int64_t blocks = node.blocks_for(cached_tokens);
  context_.index.Touch(node.slot, hashes.first(std::min<size_t>(blocks, hashes.size())));
}

bool SequenceLegs::StartPrefill(const LegWish& wish) {
  if (!prefill_.PlanHolds()) {
    prefill_.ReleaseTokens();
    const auto place = FindPrefill(wish);
    if (!place.has_value()) return false;
    PlanPrefill(place->node, place->cached_tokens, wish.urgency);
  }
  if (prefill_.retained()) {
    retained_.reset();
    decode_.MarkMigrated();
  }
  was_split_ |= decode_.lent_units() > 0;
  // Scores need every row, and retained KV is complete.
  const bool may_fetch = !wish.scores && !prefill_.retained();
  const auto holder = may_fetch ? FindHolder(prefill_.node(), wish.now) : std::nullopt;
  prefill_.Send(decode_, input_, commands_.SpecOf(prompt_, wish.scores), holder,
                wish.urgency.due_within);
  return true;
}

std::optional<PrefixHolder> SequenceLegs::FindHolder(NodeKey computing, absl::Time now) {
  const int64_t tokens_min = context_.options.fetch_tokens_min;
  const Node* planned = context_.fleet.Find(computing);
  // Nodes of other numerics name their blocks alike only within the fleet's own rules for mixing.
  if (tokens_min == 0 || planned == nullptr || context_.fleet.mixes_numerics()) return std::nullopt;
  const absl::Span<const kv::BlockHash> all =
      prompt_.Hashes(context_.fleet, context_.model, input_.cache_salt, context_.hasher);
  const auto usable = static_cast<size_t>((prompt_.size() - 1) / planned->block_tokens);
  const absl::Span<const kv::BlockHash> hashes = all.first(std::min(usable, all.size()));
  const PrefixIndex& index = context_.index;
  std::optional<PrefixHolder> best;
  int64_t most = 0;  // blocks that the best one is trusted to hold
  ReadTokens best_stored;
  int64_t best_sends = 0;
  const auto consider = [&](const Node* node, int32_t blocks) {
    if (node == nullptr || node == planned || node->draining ||
        Fleet::InBackoff(*node, *planned, now))
      return;
    // As PredictedTimes prefers them.
    const int64_t trusted = node->record.Trusted(blocks, now);
    if (trusted == 0 || trusted < most) return;
    const ReadTokens stored = StoredTokens(index, *node, trusted * node->block_tokens, hashes);
    const std::tuple cost = {stored.disk, stored.host, node->prompts_sent()};
    if (trusted == most && cost >= std::tuple(best_stored.disk, best_stored.host, best_sends))
      return;
    best = PrefixHolder{node->key, blocks};
    most = trusted;
    best_stored = stored;
    best_sends = node->prompts_sent();
  };
  const Node* decode = context_.fleet.Find(decode_.node());
  if (decode != nullptr) consider(decode, index.RunOn(decode->slot, hashes));
  // From the planned node's slot on, so that nodes that fetch the same prefix ask different
  // holders.
  for (const auto& holders : index.DeepestHolders(hashes, CandidateFinder::kHolders, planned->slot))
    for (const PrefixIndex::Match& match : holders)
      consider(context_.fleet.At(match.slot), match.blocks);
  if (!best.has_value()) return std::nullopt;
  const int64_t here = index.RunOn(planned->slot, hashes);
  const int64_t missing = (most - here) * planned->block_tokens;
  if (missing < tokens_min) return std::nullopt;
  const FetchTimes fetch =
      context_.fleet.Fetching(*context_.fleet.Find(best->node), *planned,
                              here * planned->block_tokens, missing, best_stored);
  if (!fetch.pays()) return std::nullopt;
  if (fetch.tokens < missing)
    best->blocks = static_cast<int32_t>(here + fetch.tokens / planned->block_tokens);
  TouchPrefix(best->node, int64_t{best->blocks} * planned->block_tokens);
  return best;
}

void SequenceLegs::BeginNewEpoch(const LegWish& wish, bool may_send) {
  std::optional<PairPlacement::PrefillPlace> place;
  if (may_send && decode_.lent_units() == 0) place = FindPrefill(wish);
  decode_.SendNewEpoch(place.has_value() ? context_.options.local_prefill_tokens_max : -1);
  if (place.has_value()) PlanPrefill(place->node, place->cached_tokens, wish.urgency);
}

void SequenceLegs::OnComputesLocally() {
  prefill_.Forget();
  DropRetained("the decode node computes the prompt itself");
}

void SequenceLegs::DropRetained(absl::string_view reason) {
  if (retained_.has_value()) commands_.SendAbort(retained_->node, retained_->attempt, reason);
  retained_.reset();
}

void SequenceLegs::OnNodeLost(NodeKey node) {
  if (retained_.has_value() && retained_->node == node) retained_.reset();
}

// Attempt numbers rise from a placement's decode leg to its prefill legs, in the order of sending.
bool SequenceLegs::IsEarlierSender(const v1::Leg& leg) const {
  const bool sends_now = prefill_.live() && leg.attempt() == prefill_.attempt();
  return decode_.live() && leg.attempt() > decode_.attempt() &&
         leg.attempt() <= commands_.last_attempt() && !sends_now;
}

void SequenceLegs::RecordTransfer(const v1::Installed& installed) {
  if (decode_.migrated()) {
    RouterCounters& counters = context_.counters;
    const int64_t computed = installed.tokens().computed() + installed.prefill_tokens().computed();
    counters.kv_tokens_recomputed += computed;
    if (computed <= 0) {  // the draining node sent everything
      ++counters.sequences_migrated;
      counters.kv_tokens_moved += installed.tokens().received();
    }
  }
  if (installed.transport().empty()) return;
  if (Node* node = context_.fleet.Find(decode_.node()); node != nullptr)
    node->transport = installed.transport();
  if (!prefill_.live()) return;
  if (Node* node = context_.fleet.Find(prefill_.node()); node != nullptr)
    node->transport = installed.transport();
  context_.fleet.KvTransferDone(prefill_.node(), decode_.node(), installed);
}

void SequenceLegs::Abort(absl::string_view reason) {
  prefill_.Abort(reason);
  decode_.Abort(reason);
  DropRetained(reason);
}

}  // namespace tandem::router
