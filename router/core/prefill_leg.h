// The prefill leg of a sequence's current placement: the node that computes the prompt (or retained
// its KV) and sends the KV to the decode node. A placement may need several of them, one after the
// other, when senders are lost or fail. Keeps the leg's state, the tokens it adds to the fleet's
// figures, and sends its command. SequenceMachine decides what happens; the leg carries it out.
//
//   Clear ─▶ Plan ─▶ Send ─▶ OnFinished ─▶ Abort or Forget
//              ▲               │
//              └─ Abort, Plan ─┘ (another node is tried)
//
// Thread safety: none; a SequenceMachine owns it.
// Invariants: the fleet counts the leg's tokens once, from Plan until OnFinished, ReleaseTokens,
// Abort or Forget.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "router/core/decode_leg.h"
#include "router/core/leg_commands.h"
#include "router/core/prefix_holder.h"
#include "router/core/request_input.h"
#include "router/core/sequence_context.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class PrefillLeg {
 public:
  // `commands` outlives the leg.
  PrefillLeg(const SequenceContext& context, LegCommands& commands)
      : context_(context), commands_(commands) {}

  // A new placement begins: no node is planned, none was tried. REQUIRES: !live().
  void Clear() { state_ = {}; }
  // Names the node that will compute the prompt and counts its work in the fleet. Sends nothing.
  // `tokens`: that it has to compute, the last ones of `prompt_tokens`. REQUIRES: !live(); the node
  // has joined.
  void Plan(NodeKey node, int64_t tokens, int64_t prompt_tokens, const request::Urgency& urgency);
  // The planned node retained the sequence's KV and sends it as it is.
  void MarkRetained() { state_.retained = true; }
  // Whether the planned node can still be sent the leg: it is there, and takes work unless it
  // retained the KV.
  bool PlanHolds() const;
  // Tells the planned node to compute, to fetch what `holder` has before (if there is one), and to
  // send to `decode`'s lease. `first_token_within`: from now until it is due; infinite = no time is
  // set. REQUIRES: a node is planned; the decode node has joined.
  void Send(const DecodeLeg& decode, const RequestInput& input, v1::SequenceSpec sequence,
            const std::optional<PrefixHolder>& holder, absl::Duration first_token_within);
  // The node has computed its part. `finished` says which tokens it had, and whether it declined
  // to fetch.
  void OnFinished(const v1::PrefillFinished& finished);
  // Takes the leg's tokens out of the fleet's figures. Idempotent.
  void ReleaseTokens();
  // Ends the leg, planned or sent; the node of one that was sent is told why. Idempotent.
  void Abort(absl::string_view reason);
  // Ends the leg without a word to the node, which has ended it itself or was sent none.
  // Idempotent.
  void Forget();

  // Whether an event that `node` sent is about this leg.
  bool Is(NodeKey node, const v1::Leg& leg) const {
    return sent() && state_.node == node && leg.attempt() == state_.attempt;
  }

  NodeKey node() const { return state_.node; }
  const std::string& node_id() const { return state_.node_id; }
  uint32_t attempt() const { return state_.attempt; }  // 0 until Send
  bool sent() const { return state_.attempt != 0; }
  // The node may hold something for the leg.
  bool live() const { return state_.live; }
  bool finished() const { return state_.finished; }
  bool retained() const { return state_.retained; }
  // Legs sent for the current decode placement, this one included.
  int tries() const { return state_.tries; }

 private:
  struct State {
    NodeKey node;
    std::string node_id;
    uint32_t attempt = 0;
    bool live = false;
    bool counted = false;  // `tokens` are in the fleet's figure
    bool finished = false;
    bool retained = false;
    int64_t tokens = 0;
    PromptWork::Entry work;  // of `tokens`
    int tries = 0;
    int64_t prompt_tokens = 0;
    std::optional<PrefixHolder> holder;
    bool scored = false;  // all of the prompt is computed, for its scores
  };

  const SequenceContext context_;
  LegCommands& commands_;
  State state_;
};

}  // namespace tandem::router
