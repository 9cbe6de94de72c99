// One sequence's life: from the queue, over a decode leg and its prefill legs, to its end. It
// decides; SequenceLegs carries out, and SequenceAnswer collects what the client gets.
//
// clang-format off
//   kQueued ─Place─▶ kReserving ─Reserved─▶ kPrefilling ─first token─▶ kInstalling
//      ▲                 │                      │ Installed                 │ Installed
//      │                 └── computes locally ──┴──▶ kGenerating ◀──────────┘
//      │                                                  └─ complete ─▶ kDone
//      └── refused, or the decode leg is lost, fails or is late: from each state but kDone
// clang-format on
//
// From each state it becomes kDone when it fails, or the client side ends it. Each return to
// kQueued begins another attempt, of attempts_max at most, unless the node was full or drains.
//
// In kPrefilling and kInstalling, a prefill leg that is lost, refused, failed or late is replaced
// under the same lease: the machine sends NewEpoch to the decode node and is kReserving again until
// the node says what the prompt still lacks. The node computes a short rest itself; otherwise
// another prefill node sends it.
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: Settle reports the end or the failure once, and the machine ignores all later events;
// no leg outlives the machine (each was aborted or has ended); each state has a deadline(); each
// figure that a leg adds to a node in the fleet is taken back exactly once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/core/first_token_goal.h"
#include "router/core/request_input.h"
#include "router/core/sequence_answer.h"
#include "router/core/sequence_context.h"
#include "router/core/sequence_legs.h"
#include "router/placement/pair_placement.h"
#include "router/placement/placed_work.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class SequenceMachine {
 public:
  // How long a sequence avoids a node that failed it: long enough for a restart to show as a lost
  // stream. (A refusal only means "full now", so a node that refused is avoided for less.)
  static constexpr absl::Duration kFailureMemory = absl::Seconds(1);

  enum class State { kQueued, kReserving, kPrefilling, kInstalling, kGenerating, kDone };
  using Outcome = SequenceAnswer::Outcome;

  // `number`: names the sequence in its legs' events.
  SequenceMachine(RequestInput input, uint64_t number, const SequenceContext& context,
                  absl::Time now);
  SequenceMachine(const SequenceMachine&) = delete;
  SequenceMachine& operator=(const SequenceMachine&) = delete;

  // Places a queued sequence. Returns why it stays queued; nullopt if it was placed or has failed.
  // `beside`: the decode node that holds this prompt for another sequence of the request; it is
  // preferred. `kept`: decode nodes whose room is kept for sequences that have waited longer.
  // REQUIRES: kQueued.
  std::optional<PlacementFailure> Place(std::optional<NodeKey> beside,
                                        const std::vector<NodeKey>& kept, absl::Time now);
  // It stays queued for now. REQUIRES: kQueued.
  void StayQueued(PlacementFailure why) { placement_failure_ = why; }
  // As SequenceLegs' methods of these names.
  std::optional<NodeKey> NodeToKeep(const std::vector<NodeKey>& kept, absl::Time now) {
    return legs_.NodeToKeep(kept, now);
  }
  // Whether the first token's goal is out of reach, so that the sequence waits behind others.
  bool late() const { return goal_.late(); }
  // Why a request that waits is refused, if it is: nodes are predicted to begin with it after
  // `before`. It takes `usual` if no placement was tried, which is when many wait. nullopt if it
  // may be in time, or waits though it is late.
  std::optional<absl::Status> LateRefusal(absl::Duration before, absl::Duration usual,
                                          absl::Time now) const;
  // Whether nodes that begin with it after `before` and take `fastest` would surely bring its first
  // token too late.
  bool WouldBeLate(absl::Duration before, absl::Duration fastest, absl::Time now) const {
    return goal_.SurelyMissed(before + fastest, now);
  }
  // When the last Place predicted the first token, and when it would come if no prompt waited
  // before this one; 0 = not known.
  absl::Duration first_token_predicted() const { return first_token_predicted_; }
  absl::Duration first_token_fastest() const { return first_token_fastest_; }
  bool AvoidsNodes(absl::Time now) const { return legs_.AvoidsNodes(now); }
  // Tokens that a decode node must have room for to take it now.
  int64_t tokens_to_place() const {
    return legs_.prompt().size() + static_cast<int64_t>(answer_.delivered().size()) -
           legs_.prompt().delivered() + 1;
  }
  // The same without the tokens that a decode node holds already.
  int64_t tokens_without_prefix() {
    return std::max<int64_t>(1, tokens_to_place() - legs_.HeldTokens());
  }
  // A held sequence waits for its leader. It is not placed, and its queue deadline does not run.
  // REQUIRES: kQueued.
  void Hold() { held_ = true; }
  void Unhold(absl::Time now);
  // Its request has its first token already: it is neither late nor refused.
  void SetGoalMet() { goal_.SetMet(); }

  // Events of nodes. Events of legs other than the current ones are ignored.
  void OnEvent(NodeKey node, const v1::NodeEvent& event, absl::Time now);
  void OnTokens(NodeKey node, const v1::TokensGenerated::Step& step, absl::Time now);
  // False: nothing of it was there, and nothing has changed. REQUIRES: the node has left the fleet.
  bool OnNodeLost(NodeKey node, const absl::Status& why, absl::Time now);
  // The deadline may have passed; does nothing if it moved.
  void OnDeadline(absl::Time now);
  // The client side ends the sequence.
  void Finish(request::FinishReason reason);
  // What the events since the last call amount to. Call after each batch of events, not after each
  // event: the statistics that share a message with the last token then count. The outcome with
  // `done` or a failure comes once, and is the last.
  Outcome Settle(absl::Time now);

  State state() const { return state_; }
  bool done() const { return state_ == State::kDone; }
  // Whether a node was ever asked to compute for it.
  bool was_placed() const { return was_placed_; }
  // What the last placement was predicted to take. REQUIRES: was_placed().
  const PlacedWork& work() const { return work_; }
  // When to call OnDeadline.
  absl::Time deadline() const;
  // Time in the queue since it was last queued or unheld.
  absl::Duration waited(absl::Time now) const { return now - queued_since_; }
  const RequestInput& input() const { return input_; }
  const ServiceTier& tier() const { return input_.TierOr(context_.options.default_tier); }
  // For lists of the running requests.
  const SequenceLegs& legs() const { return legs_; }
  int32_t attempts() const { return attempts_; }
  absl::Time submitted() const { return answer_.steps().submitted; }
  size_t delivered_tokens() const { return answer_.delivered().size(); }
  // The decode node that holds the current placement's whole prompt; also after the end.
  std::optional<NodeKey> home() const {
    return legs_.decode().installed() ? std::optional<NodeKey>(legs_.decode().node())
                                      : std::nullopt;
  }
  // Whether other sequences of the request may begin: the decode node holds the whole prompt, and
  // the prompt's scores, which the client gets before any token, are complete.
  bool MayBeFollowed() const { return home().has_value() && !answer_.AwaitsScores(); }

 private:
  // Whether it is refused when its first token cannot come in time.
  bool RefusesLate() const {
    return tier().late == LatePolicy::kRefuse && !was_reserved_ && !goal_.late();
  }
  // The goal may be out of reach: the sequence is late, or fails.
  void CheckGoal(absl::Time now);
  // Of a request that has set none: to what a usual decode node holds at this placement, or if an
  // answer that has begun fits none any more.
  void LowerMaxTokens();
  SequenceLegs::LegWish WishAt(absl::Time now) const {
    return {answer_.AwaitsScores(), UrgencyAt(now), now};
  }
  // Its place among the prompts that a node computes.
  request::Urgency UrgencyAt(absl::Time now) const {
    return {.priority = input_.priority, .due_within = goal_.DueWithin(now)};
  }
  void StartDecode(const Placement& placement, absl::Time now);
  // False if no prefill node takes the prompt.
  bool StartPrefill(absl::Time now);

  void OnReserved(const v1::Reserved& reserved, absl::Time now);
  void OnDecodeRefused(const v1::Refused& refused, absl::Time now);
  void OnInstalled(const v1::Installed& installed, absl::Time now);
  void OnDecodeTokens(const v1::TokensGenerated::Step& step, absl::Time now);
  void OnPrefillTokens(const v1::TokensGenerated::Step& step, absl::Time now);
  void OnLegFinished(const v1::LegFinished& finished, absl::Time now);
  void OnLegFailed(NodeKey node, const v1::LegFailed& failed, absl::Time now);
  void OnDecodeFailed(const v1::LegFailed& failed, absl::Time now);
  void OnPrefillLegFailed(const v1::LegFailed& failed, absl::Time now);
  // A step that computed blocks of the lease failed: nothing that the receiver holds can be
  // trusted. Does nothing once the whole prompt is installed.
  void OnLeaseInDoubt(const absl::Status& why, absl::Time now);
  void OnPrefillFailed(const absl::Status& why, absl::Time now);
  void OnPrefillRefused(const absl::Status& why, absl::Time now);
  // Delivers a token that a leg reported, once and in order. An error: the leg that sent it must be
  // given up. `count_duplicate`: see SequenceAnswer::Offer.
  absl::Status Offer(const v1::GeneratedToken& token, bool count_duplicate, absl::Time now);
  // Compares the first token's time with what was predicted for it.
  void OnFirstToken(absl::Time now);
  // Ends the sequence if its answer is complete.
  void CheckEnd(bool decode_leg_ends_itself);

  bool AwaitsPrefill() const {
    return state_ == State::kPrefilling || state_ == State::kInstalling;
  }
  // NewEpoch was sent, and not yet answered.
  bool AwaitsNewEpoch() const { return state_ == State::kReserving && legs_.decode().reserved(); }
  // Avoids the decode node for a while, and places the sequence again.
  void GiveUpDecode(const absl::Status& why, absl::Time now);
  // Tries another prefill node for the same lease, or places the sequence again.
  void RetryPrefill(const absl::Status& why, absl::Time now);
  // Ends both legs and queues the sequence again, with a delay if the router retries often. Counts
  // an attempt, unless the decode node drains: it then gave the leg up on purpose.
  void Replace(const absl::Status& why, absl::Time now);
  // Counts one more attempt. False, and the sequence fails, if that is too many.
  bool CountAttempt(const absl::Status& why);
  void Fail(absl::Status status);
  absl::Status LateStatus(absl::string_view what, absl::Duration limit) const;
  absl::Status AnswerDeadlineStatus() const;
  void LogRetry(absl::string_view what, const std::string& node, const absl::Status& why) const;
  void Enter(State state, absl::Time deadline) {
    state_ = state;
    state_deadline_ = deadline;
  }

  RequestInput input_;
  const int32_t max_tokens_at_first_;  // before LowerMaxTokens
  const SequenceContext context_;
  const absl::Time answer_deadline_;
  FirstTokenGoal goal_;
  bool held_ = false;
  bool was_placed_ = false;
  bool was_reserved_ = false;  // a node had room for it: goals decide nothing any more
  PlacedWork work_;            // of the last placement
  State state_ = State::kQueued;
  SequenceAnswer answer_;
  SequenceLegs legs_;

  int32_t attempts_ = 1;
  int refusals_ = 0;                                   // in a row
  std::optional<PlacementFailure> placement_failure_;  // of the last Place
  // Of the last Place, from then; 0 = not known.
  absl::Duration first_token_predicted_, first_token_fastest_;
  absl::Time queued_since_;
  absl::Time not_before_ = absl::InfinitePast();  // of the next placement
  absl::Time state_deadline_ = absl::InfiniteFuture();
};

}  // namespace tandem::router
