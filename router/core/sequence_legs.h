// Both legs of a sequence's current placement, and what they start from: the prompt as placed, the
// nodes to avoid, and the KV that a draining node retained. It finds nodes for the legs and starts
// them; SequenceMachine decides when.
//
// Thread safety: none; a SequenceMachine owns it.
// Invariants: both legs of one placement start from the same prompt().
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/decode_leg.h"
#include "router/core/failed_nodes.h"
#include "router/core/leg_commands.h"
#include "router/core/placed_prompt.h"
#include "router/core/prefill_leg.h"
#include "router/core/request_input.h"
#include "router/core/sequence_context.h"
#include "router/placement/pair_placement.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class SequenceLegs {
 public:
  // `input` outlives this. `number`: see LegCommands.
  SequenceLegs(const RequestInput& input, uint64_t number, const SequenceContext& context);
  SequenceLegs(const SequenceLegs&) = delete;
  SequenceLegs& operator=(const SequenceLegs&) = delete;

  DecodeLeg& decode() { return decode_; }
  const DecodeLeg& decode() const { return decode_; }
  PrefillLeg& prefill() { return prefill_; }
  const PrefillLeg& prefill() const { return prefill_; }
  const PlacedPrompt& prompt() const { return prompt_; }
  // Appends delivered tokens to the prompt. Only between placements.
  void ExtendPrompt(const std::vector<TokenId>& delivered) { prompt_.Extend(delivered); }

  // What a placement that is looked for must keep to.
  struct PlaceWish {
    std::optional<NodeKey> beside;      // this node first
    const std::vector<NodeKey>& kept;   // else none of these
    absl::Duration first_token_within;  // from now
    absl::Duration step_within;         // with it, on its decode node
    bool heeds_step_goals = false;      // as PlacementRequest's
    request::Urgency urgency;           // from now
  };
  // Finds nodes for a new placement. Returns why there are none, or nullopt and fills `placement`.
  // Starts nothing.
  std::optional<PlacementFailure> FindPlace(const PlaceWish& wish, absl::Time now,
                                            Placement& placement);
  // As PairPlacement's, for this sequence.
  std::optional<NodeKey> NodeToKeep(const std::vector<NodeKey>& kept, absl::Time now);
  // Tokens of the prompt, from its start, that a decode node holds at most, as the index says.
  // Cheap if that has not grown since the last call; what has shrunk is seen by FindPlace.
  int64_t HeldTokens();
  // Whether new placements avoid some node now.
  bool AvoidsNodes(absl::Time now) const { return failed_.any(now); }
  // What a leg that starts `now` is to compute.
  struct LegWish {
    bool scores = false;       // the prompt's scores are still to be computed
    request::Urgency urgency;  // from now
    absl::Time now;
  };
  // Starts the decode leg and plans the prefill leg. A node that retained the sequence's KV becomes
  // the prefill node.
  void Start(const Placement& placement, const LegWish& wish);
  // Sends the prefill leg to the planned node if that still takes it, else to another one. False if
  // no node takes it. REQUIRES: the decode leg is reserved.
  bool StartPrefill(const LegWish& wish);
  // After a prefill leg ended early: asks the decode node, under a new epoch, what the prompt still
  // lacks, and plans another prefill leg if one `may_send`; otherwise the decode node computes the
  // rest. REQUIRES: the decode leg is reserved.
  void BeginNewEpoch(const LegWish& wish, bool may_send = true);

  // The draining decode node gave the leg up and keeps its KV until it is told to send or drop it.
  void RetainDecodeLeg() { retained_ = Retained{decode_.node(), decode_.attempt()}; }
  // The decode node computes the prompt itself: no node needs to send it, nor to keep it any more.
  void OnComputesLocally();
  void OnNodeLost(NodeKey node);
  // New placements avoid `node` until `until`.
  void Avoid(NodeKey node, absl::Time until) { failed_.Add(node, until, context_.fleet); }

  // Whether `leg` is a prefill leg of the current placement that has ended, replaced by another or
  // not.
  bool IsEarlierSender(const v1::Leg& leg) const;
  // Adds the KV transfer that filled the decode leg's lease to the fleet's links and the counters.
  // REQUIRES: `installed` is bounded (router/core/leg_report.h).
  void RecordTransfer(const v1::Installed& installed);
  // Ends both legs and drops what a draining node retained. `reason`: for the nodes.
  void Abort(absl::string_view reason);

 private:
  struct Retained {
    NodeKey node;
    uint32_t attempt = 0;
  };

  // Tells the node that retained the sequence's KV, if there is one, to drop it.
  void DropRetained(absl::string_view reason);
  PlacementRequest MakePlacementRequest(absl::Time now);
  // The node from which `computing`, which computes the prompt, should fetch its beginning: the one
  // that holds most of it, if fetching that is predicted to take less time than computing it; of
  // equal ones the decode node, then the one that sends fewer prompts' KV.
  std::optional<PrefixHolder> FindHolder(NodeKey computing, absl::Time now);
  // Blocks of the prefill node, if it can compute the prompt and lend its beginning because one of
  // the two nodes cannot hold it; 0: it cannot, or need not.
  int64_t BlocksToLendFrom(const Node& prefill, const Node& decode) const;
  // Whether the node can compute what the decode leg asks for.
  bool CanCompute(const Node& prefill) const;
  // Another node for the prefill leg, if one can compute it.
  std::optional<PairPlacement::PrefillPlace> FindPrefill(const LegWish& wish);
  // Plans the prefill leg on `node`, which holds `cached_tokens` of the prompt.
  void PlanPrefill(NodeKey node, int64_t cached_tokens, const request::Urgency& urgency);
  // The index forgets the prefix that the node is expected to hold later than others.
  void TouchPrefix(NodeKey key, int64_t cached_tokens);

  const RequestInput& input_;
  const SequenceContext context_;
  LegCommands commands_;
  PlacedPrompt prompt_;
  DecodeLeg decode_;
  PrefillLeg prefill_;
  std::optional<Retained> retained_;
  FailedNodes failed_;
  std::optional<size_t> held_blocks_;  // see HeldTokens
  // A prefill node was told to lend the prompt's beginning. It is tried once: if that fails, the
  // decode node computes the prompt piece by piece.
  bool was_split_ = false;
};

}  // namespace tandem::router
