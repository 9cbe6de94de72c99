// The decode leg of a sequence's current placement: the node that holds a lease for the prompt's KV
// and generates the answer. Keeps the leg's state, what it reserves in the fleet's figures, and
// sends its commands. SequenceMachine decides what happens; the leg carries it out.
//
//   Place ─▶ SendStart ─▶ OnReserved ─▶ OnInstalled ─▶ Abort or Forget
//                           ▲    │
//                           └─ SendNewEpoch (another prefill leg fills the same lease)
//
// Thread safety: none; a SequenceMachine owns it.
// Invariants: while live(), the fleet counts the leg once; blocks() are in the fleet's unconfirmed
// figure from Place until Reserved, Abort or Forget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/leg_commands.h"
#include "router/core/placed_prompt.h"
#include "router/core/prefix_holder.h"
#include "router/core/request_input.h"
#include "router/core/sequence_context.h"
#include "router/placement/pair_placement.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class DecodeLeg {
 public:
  // `commands` outlives the leg.
  DecodeLeg(const SequenceContext& context, LegCommands& commands)
      : context_(context), commands_(commands) {}

  // Begins a new leg on the placement's node and counts it in the fleet. Sends nothing yet.
  // `prompt_tokens`: of the prompt as placed. `step_goal`: as Fleet::DecodePlaced's. `urgency`:
  // where the prompt stands, if the node computes it. REQUIRES: !live(); the node has joined.
  void Place(const Placement& placement, int64_t prompt_tokens, absl::Duration step_goal,
             const request::Urgency& urgency);
  struct Start {
    v1::SequenceSpec sequence;
    // Uncached prompt tokens that the node computes itself; -1 = all of them.
    int32_t local_prefill_tokens_max = 0;
    int64_t prefill_blocks = 0;  // as StartDecode's
    // Of what a node that computes the prompt is to fetch before.
    std::optional<PrefixHolder> holder;
    absl::Duration first_token_within;  // from now until it is due; infinite = no time is set
  };
  // Asks the node for a lease.
  void SendStart(const RequestInput& input, Start wanted);
  // The node granted the lease, or (after SendNewEpoch) says what the prompt still lacks.
  // `prompt_tokens`: as for Place.
  void OnReserved(const v1::Reserved& reserved, int64_t prompt_tokens);
  // Raises the epoch, so that blocks from the former prefill leg are refused, and tells the node.
  void SendNewEpoch(int32_t local_prefill_tokens_max);
  void OnInstalled();
  // The prompt's KV may have gone: the placement is over.
  void ForgetInstalled() { state_.installed = false; }
  // The KV comes from a draining node that retained it.
  void MarkMigrated() { state_.migrated = true; }
  // Ends the leg, and tells the node why. Idempotent.
  void Abort(absl::string_view reason);
  // Ends the leg without a word to the node, which has ended it itself. Idempotent.
  void Forget();

  // Whether an event that `node` sent is about this leg.
  bool Is(NodeKey node, const v1::Leg& leg) const {
    return state_.live && state_.node == node && leg.attempt() == state_.attempt;
  }

  // As Is, also for a leg that has ended.
  bool WasAt(NodeKey node, const v1::Leg& leg) const {
    return state_.node == node && leg.attempt() == state_.attempt;
  }

  NodeKey node() const { return state_.node; }
  const std::string& node_id() const { return state_.node_id; }
  uint32_t attempt() const { return state_.attempt; }
  // The node may hold something for the leg.
  bool live() const { return state_.live; }
  bool reserved() const { return state_.reserved; }
  // The node computes the prompt itself: no prefill leg is needed.
  bool computes_locally() const { return state_.computes_locally; }
  // The whole prompt's KV lies on the node. Stays set after the end.
  bool installed() const { return state_.installed; }
  bool migrated() const { return state_.migrated; }
  uint64_t lease() const { return state_.lease; }
  uint32_t epoch() const { return state_.epoch; }
  int64_t cached_tokens() const { return state_.cached_tokens; }
  // The prompt's first units, which the prefill node is to lend.
  int32_t lent_units() const { return state_.lent_units; }
  // Prompt tokens that an earlier prefill leg brought.
  int64_t received_tokens() const { return state_.received_tokens; }
  // Prompt tokens that need no sender: cached, or received from an earlier one.
  int64_t tokens_held() const { return state_.cached_tokens + state_.received_tokens; }

 private:
  // Compares what the node says that it has with what the index said of it and of the holder.
  void CheckHolders(const v1::Reserved& reserved);
  // The node no longer computes the prompt, as far as the fleet's figures go.
  void EndLocalPrefill();

  struct State {
    NodeKey node;
    std::string node_id;
    uint32_t attempt = 0;
    bool live = false, reserved = false, computes_locally = false, installed = false,
         migrated = false;
    int64_t blocks = 0;                                   // asked for
    absl::Duration step_goal = absl::InfiniteDuration();  // in the fleet's figures
    int64_t beyond = 0;  // that the prompt needs of other nodes; in the fleet's figures
    std::optional<PromptWork::Entry> local;  // if the node computes it; in the fleet's figures
    int64_t claimed_tokens = 0;              // that it holds, by the index
    std::optional<PrefixHolder> holder;      // that it is to fetch from
    uint64_t lease = 0;
    uint32_t epoch = 0;
    int64_t cached_tokens = 0, received_tokens = 0;
    int32_t lent_units = 0;
  };

  const SequenceContext context_;
  LegCommands& commands_;
  State state_;
};

}  // namespace tandem::router
