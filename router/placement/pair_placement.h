// Places both legs of a request together: a decode node, and the prefill node that sends it the KV.
// The policy of --placement chooses them: the pair by predicted times (`cost`, the default:
// CostPlacement) or by weighted scores (`affinity`: AffinityPlacement), or each leg alone, for
// comparisons (LegChooser). With pairs, a decode node that makes prefill cheap (it holds the
// prefix, or shares memory with an idle prefill node) wins over one that is only emptier. A pair
// whose KV transfers fail is left out for a while (Fleet::KvTransferFailed). Without a prefill node
// that could take the prompt, the decode node computes it (interleaved mode).
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: keeps no state but round robin's; reads the fleet and the index, and draws from
// `random`.
// Cost: of pairs, at most 16 nodes of each role are weighed, however many have joined
// (CandidateFinder); of legs alone, see LegChooser.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "common/kv/block_hash.h"
#include "common/runtime/random.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "router/placement/affinity_placement.h"
#include "router/placement/candidate_finder.h"
#include "router/placement/cost_placement.h"
#include "router/placement/leg_chooser.h"
#include "router/placement/leg_criteria.h"
#include "router/placement/placement_policy.h"
#include "tandem/v1/client.pb.h"

namespace tandem::router {

struct PlacementRequest {
  int64_t prompt_tokens = 0;
  int64_t tokens_total = 0;  // prompt and answer at their longest
  absl::Span<const kv::BlockHash> hashes;
  absl::Time now;
  const std::vector<std::pair<NodeKey, absl::Time>>* failed = nullptr;
  // Decode nodes whose room is kept for sequences that have waited longer; may be null.
  const std::vector<NodeKey>* kept = nullptr;
  request::Urgency urgency;  // its place among the prompts that a node computes
  // The first token is wanted within this time from now; only the policy `cost` knows.
  absl::Duration first_token_within = absl::InfiniteDuration();
  // A step of the decode node with the sequence may take so long; the same policy.
  absl::Duration step_within = absl::InfiniteDuration();
  // Nor may it take longer than what already runs there allows (Node::step_goal).
  bool heeds_step_goals = false;
  // Of the prompt, from its start, what the request's other sequences have as well: all but the
  // tokens of an answer that goes on. Only PlaceBeside looks at it.
  int64_t shared_tokens = 0;
};

struct Placement {
  NodeKey decode;
  int64_t decode_cached_tokens = 0;  // expected
  // Absent: the decode node computes the prompt, whatever its length.
  std::optional<NodeKey> prefill;
  int64_t prefill_cached_tokens = 0;
  bool beside = false;  // on the decode node of the request's other sequences
  // Uncached tokens that the decode node computes itself; -1 = all. Sent in StartDecode.
  int32_t local_prefill_tokens_max = -1;
  // When the first token is predicted to come, from now; 0 = other policies than `cost` do not say.
  absl::Duration first_token_predicted;
  // After a failure: the same if no prompt waited before this one; 0 = unknown.
  absl::Duration first_token_fastest;
  // What computing the prompt is predicted to take, in microseconds, after what is read or fetched;
  // absent: other policies than `cost` do not say.
  std::optional<double> compute_us;
  // The decode node is to compute the prompt, for so long; 0 = it is not, or that is not known.
  double local_prefill_us = 0;
  // What was weighed; null unless Options::explains. Shared with the sequence's report.
  std::shared_ptr<v1::PlacementDecision> decision;
};

// Why a request could not be placed now.
enum class PlacementFailure {
  kNoDecodeNode,  // none has joined, or all drain
  kNeverFits,     // no decode node could hold it even when empty
  kNoRoom,        // the nodes that could hold it are full, or refused it a moment ago
  kPrefillBusy,   // every prefill node is predicted to begin with it too late
  kTooLate,       // no placement is predicted to bring its first token in time
  kStepsTooLong,  // with it, the steps of every decode node that has room would take too long
  kTenantShare,   // its tenant's sequences hold as much KV as they may
  kNotYet,        // its last placement failed, and it waits before the next one
};

class PairPlacement {
 public:
  struct Options {
    int32_t local_prefill_tokens_max = 0;
    int32_t fetch_tokens_min = 0;  // as RouterOptions'
    PlacementPolicy policy = PlacementPolicy::kCost;
    bool explains = false;  // placements tell what was weighed
    // A prompt waits in the router while every prefill node is predicted to need longer than this
    // before it begins with it; 0 = it never does.
    absl::Duration prefill_wait_max;
  };
  // `fleet`, `index` and `random` outlive this.
  PairPlacement(const Options& options, const Fleet& fleet, const PrefixIndex& index,
                Random& random);

  // On success fills `placement` and returns nullopt. With kTooLate and kPrefillBusy, placement
  // tells when the first token would come (policy `cost`).
  std::optional<PlacementFailure> Place(const PlacementRequest& request, Placement& placement);
  // Places the request on `decode` only: that node holds the full blocks of the shared tokens, and
  // of what follows as many as the index says. It computes the last, partial one itself. False when
  // it has left, takes no work, has no room, or its steps would take too long (policy `cost`).
  bool PlaceBeside(const PlacementRequest& request, NodeKey decode, Placement& placement);
  // The decode node whose room should be kept for a request that finds none: of those that could
  // hold it and are not kept yet, the one with the most free blocks, of equal ones that with the
  // lowest node id; nullopt if there is none. Cost: O(log n) for each that is kept.
  std::optional<NodeKey> NodeToKeep(const PlacementRequest& request) const;
  // A prefill node for a decode leg already placed on `decode`; nullopt when none can take it.
  struct PrefillPlace {
    NodeKey node;
    int64_t cached_tokens = 0;
  };
  std::optional<PrefillPlace> PlacePrefill(const PlacementRequest& request, NodeKey decode);

 private:
  // The policy `affinity` (pair_by_affinity.cc).
  std::optional<PlacementFailure> PlaceByAffinity(const PlacementRequest& request,
                                                  Placement& placement);
  std::optional<PrefillPlace> PrefillByAffinity(const PlacementRequest& request,
                                                const Node& decode);
  std::vector<AffinityPlacement::Scored> ScoredCandidates(
      const LegCriteria& criteria, const LegNeeds& needs, absl::Span<const kv::BlockHash> hashes,
      const PrefixIndex::Matches& holders) const;

  // The policy `cost` (pair_by_cost.cc).
  std::optional<PlacementFailure> PlaceByCost(const PlacementRequest& request,
                                              Placement& placement);
  std::optional<PrefillPlace> PrefillByCost(const PlacementRequest& request, const Node& decode);
  std::vector<Candidate> CostCandidates(const LegCriteria& criteria, const LegNeeds& needs,
                                        absl::Span<const kv::BlockHash> hashes,
                                        const PrefixIndex::Matches& holders) const;
  // Drops the candidates whose steps would take too long, if waiting helps.
  static void DropSlow(const PlacementRequest& request, const PredictedTimes& predicted,
                       std::vector<Candidate>& decodes);
  PredictedTimes::Prompt PromptOf(const PlacementRequest& request) const;

  // The policies that choose each leg alone.
  std::optional<PlacementFailure> PlaceApart(const PlacementRequest& request, Placement& placement);
  std::optional<PrefillPlace> PrefillApart(const PlacementRequest& request, const Node& decode,
                                           const PrefixIndex::Matches& holders);

  static LegNeeds NeedsOf(const PlacementRequest& request, v1::NodeRole role);
  // What a new placement needs of a prefill node.
  LegNeeds PrefillNeeds(const PlacementRequest& request) const;
  PrefixIndex::Matches Holders(absl::Span<const kv::BlockHash> hashes) const;
  // Whether the prefill node that has least to do begins too late for the request.
  bool PrefillNodesBusy(const LegNeeds& needs) const;
  bool ComputesItself(const LegNeeds& needs, const Candidate& decode) const;
  void SetPrefill(const std::optional<PrefillPlace>& prefill, Placement& placement) const;
  PlacementFailure WhyNot(const LegNeeds& needs) const;

  // Fills placement.decision if Options::explains: `add_weighed` adds the nodes that were weighed.
  // Where it adds none, the chosen ones are told.
  void Explain(const PlacementRequest& request,
               absl::FunctionRef<void(v1::PlacementDecision&)> add_weighed,
               Placement& placement) const;
  using PlacementCandidates = google::protobuf::RepeatedPtrField<v1::PlacementCandidate>;
  static v1::PlacementCandidate& AddWeighed(const Candidate& candidate, const Placement& placement,
                                            PlacementCandidates& list);
  void AddChosen(const Placement& placement, v1::PlacementDecision& decision) const;

  const Options options_;
  const Fleet& fleet_;
  const PrefixIndex& index_;
  Random& random_;
  const CandidateFinder finder_;
  // The policy's one of these chooses.
  AffinityPlacement by_affinity_;
  CostPlacement by_cost_;
  LegChooser apart_;
  const LegCriteria decode_criteria_ = DecodeCriteria();
  const LegCriteria prefill_criteria_ = PrefillCriteria();
};

}  // namespace tandem::router
