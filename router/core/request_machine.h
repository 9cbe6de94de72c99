// One request's life over its two legs: router_core.h's diagram. The core feeds it events that name
// its request; it answers with commands and client events in the shared RouterActions.
//
//   kQueued ─Place─▶ kReserving ─Reserved─▶ kPrefilling ─first token─▶ kInstalling ─Installed─▶
//     ▲                 │    └─ computes locally ──────────────────────────────────▶ kGenerating ─▶
//     kDone └── Refused, decode leg lost, failed or late (at most attempts_max placements) ──┘
//   In kPrefilling and kInstalling a prefill leg that is lost, refused, failed or late is replaced:
//   NewEpoch to the decode node, and kReserving again until it says what is still missing: little,
//   which it computes itself, or a part for a Prefill of another node, under the same lease.
//
// Thread safety: none; who has the router's turn owns it through the core.
// A request of several sequences has one machine for each.
// Invariants: one done or failed outcome, after which the machine ignores everything; no leg
// outlives the machine (both are aborted or have ended); each state has a deadline(); nodes'
// in-flight figures are given back exactly once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/kv/block_hash.h"
#include "router/core/request_report.h"
#include "router/core/retry_budget.h"
#include "router/core/router_core.h"
#include "router/core/token_stream.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {

struct RouterCounters {
  int64_t requests_finished = 0, requests_failed = 0;
  int64_t duplicate_tokens = 0, diverged_tokens = 0;
  int64_t sequences_moved = 0, kv_tokens_moved = 0, kv_tokens_recomputed = 0;
};

// What all requests share; owned by the core, outlives the machines.
struct RequestContext {
  const RouterOptions& options;
  const ModelIdentity& model;
  Fleet& fleet;
  PrefixIndex& index;
  const PairPlacement& placement;
  RouterActions& actions;
  RouterCounters& counters;
  RetryBudget& retries;
};

class RequestMachine {
 public:
  // How long a request leaves out a node that failed it: long enough for a restart to show as a
  // lost stream. (A refusal only means "full now" and is remembered for less.)
  static constexpr absl::Duration kFailureMemory = absl::Seconds(1);

  enum class State { kQueued, kReserving, kPrefilling, kInstalling, kGenerating, kDone };

  // `number`: of the sequence, for its legs.
  RequestMachine(RequestInput input, uint64_t number, RequestContext context, absl::Time now);
  RequestMachine(const RequestMachine&) = delete;
  RequestMachine& operator=(const RequestMachine&) = delete;

  // What the events since the last call amount to.
  struct Outcome {
    std::optional<std::vector<v1::GeneratedToken>> prompt_scores;  // all of them, once
    std::vector<v1::GeneratedToken> tokens;
    std::optional<RequestDone> done;
    absl::Status failure;
  };

  // Places a queued request; what is in the way when it stays queued. `beside`: the decode node
  // that holds this prompt for another sequence of the request, preferred. REQUIRES: kQueued.
  std::optional<PlacementFailure> Place(std::optional<NodeKey> beside, absl::Time now);
  // REQUIRES: kQueued. A held request is not placed, and its time in the queue does not run.
  void Hold() { held_ = true; }
  void Unhold(absl::Time now);
  // Events of nodes; those of legs that are not this request's current ones are ignored.
  void OnEvent(NodeKey node, const v1::NodeEvent& event, absl::Time now);
  void OnTokens(NodeKey node, const v1::TokensGenerated::Step& step, absl::Time now);
  // REQUIRES: the node has left the fleet.
  void OnNodeLost(NodeKey node, const absl::Status& why, absl::Time now);
  void OnDeadline(absl::Time now);
  void Finish(request::FinishReason reason);
  // Call after each batch of events, so that statistics that share a message with the last token
  // count. `done` or a failure comes once, and is the last.
  Outcome Settle(absl::Time now);

  State state() const { return state_; }
  bool done() const { return state_ == State::kDone; }
  absl::Time deadline() const;
  absl::Duration waited(absl::Time now) const { return now - queued_since_; }
  const RequestInput& input() const { return input_; }
  // The decode node on which the current placement's prompt lies whole; also after the end.
  std::optional<NodeKey> home() const {
    return decode_.installed ? std::optional<NodeKey>(decode_.node) : std::nullopt;
  }
  // Others of its request may begin: its prompt lies whole, and the prompt's scores, which the
  // client gets before any token, are in.
  bool MayBeFollowed() const { return home().has_value() && !AwaitsScores(); }

 private:
  struct DecodeLeg {
    NodeKey node;
    std::string node_id;
    uint32_t attempt = 0;
    bool live = false;      // the node may hold something for it
    bool reserved = false;  // Reserved came
    bool computes_locally = false;
    bool installed = false;
    int64_t blocks = 0;  // in the fleet's unconfirmed figure until Reserved
    uint64_t lease = 0;
    uint32_t epoch = 0;
    int64_t cached_tokens = 0, received_tokens = 0;
    bool moved = false;  // a node that drains was told to send it what it retained
  };
  struct PrefillLeg {
    NodeKey node;
    std::string node_id;
    uint32_t attempt = 0;   // 0 = planned only
    bool live = false;      // the node may hold something for it
    bool counted = false;   // `tokens` are in the fleet's figure
    bool finished = false;  // PrefillFinished came
    bool retained =
        false;           // it is the decode node of before, which drains and sends what it retained
    int64_t tokens = 0;  // it has to compute
    int tries = 0;       // of this decode placement
  };

  // The core has found the sequence by the leg's number or name; these know it by node and attempt.
  bool IsDecode(NodeKey node, const v1::Leg& leg) const;
  bool IsPrefill(NodeKey node, const v1::Leg& leg) const;
  // A prefill leg of the current placement that has been replaced.
  bool IsEarlierSender(const v1::Leg& leg) const;
  v1::Leg MakeLeg(uint32_t attempt) const;
  v1::SequenceSpec MakeSequence() const;
  void Send(NodeKey node, v1::NodeCommand command);
  void SendAbort(NodeKey node, uint32_t attempt, absl::string_view reason);

  // The prompt's scores were asked for and are not complete.
  bool AwaitsScores() const { return prompt_scores_.has_value() && !scores_complete(); }
  bool scores_complete() const { return prompt_scores_->size() + 1 >= input_.prompt.size(); }
  void OnPromptScored(const v1::PromptScored& scored);
  void ExtendSequence();
  PlacementRequest MakePlacementRequest(absl::Time now);
  void StartDecode(const Placement& placement, absl::Time now);
  void PlanPrefill(NodeKey node, int64_t cached_tokens);
  // The planned node if it still takes work, else another; false when there is none.
  bool StartPrefill(absl::Time now);
  void SendPrefill(absl::Time now);

  void OnReserved(const v1::Reserved& reserved, absl::Time now);
  void OnDecodeRefused(const v1::Refused& refused, absl::Time now);
  void OnInstalled(const v1::Installed& installed, absl::Time now);
  void OnLegFinished(const v1::LegFinished& finished, absl::Time now);
  void OnDecodeFailed(const v1::LegFailed& failed, absl::Time now);
  void OnPrefillLegFailed(const v1::LegFailed& failed, absl::Time now);
  void OnLeaseInDoubt(const absl::Status& why, absl::Time now);
  void OnPrefillFailed(const absl::Status& why, absl::Time now);
  // An error means that the leg that sent it must be given up.
  absl::Status Offer(const v1::GeneratedToken& token, bool count_duplicate, absl::Time now);
  void GiveUpDecode(const absl::Status& why, absl::Time now);
  void CheckEnd(bool decode_leg_ends_itself);

  bool AwaitsPrefill() const {
    return state_ == State::kPrefilling || state_ == State::kInstalling;
  }
  // NewEpoch was sent, and not yet answered.
  bool AwaitsNewEpoch() const { return state_ == State::kReserving && decode_.reserved; }
  // Another prefill node for the same lease, or another placement.
  void RetryPrefill(const absl::Status& why, absl::Time now);
  // Both legs end; back to the queue, for a while if retries are many. A node that drains gave the
  // leg up on purpose: that is no attempt.
  void Replace(const absl::Status& why, absl::Time now);
  // One more attempt; false (and the request fails) when that is too many.
  bool CountAttempt(const absl::Status& why);
  void EndDecodeLeg(absl::string_view abort_reason);
  void EndPrefillLeg(absl::string_view abort_reason);
  void ReleasePrefillTokens();
  // What a draining node retained of the sequence is not wanted (any more).
  void ReleaseRetained(absl::string_view reason);
  // The node that keeps it, if it is still there.
  const Node* RetainedBy() const;
  void CountMove(const v1::Installed& installed);
  void MarkFailed(NodeKey node, absl::Time until);
  void Fail(absl::Status status);
  absl::Status QueueDeadlineStatus() const;
  absl::Status AnswerDeadlineStatus() const;
  void LogRetry(absl::string_view what, const std::string& node, const absl::Status& why) const;

  RequestInput input_;
  const uint64_t number_;
  RequestContext context_;
  const absl::Time answer_deadline_;
  bool held_ = false;
  // Of tokens 1, 2, ... of the prompt, so far; nullopt unless asked for.
  std::optional<std::vector<v1::GeneratedToken>> prompt_scores_;
  bool prompt_scores_given_ = false;
  State state_ = State::kQueued;
  TokenStream tokens_;
  RequestSteps steps_;
  RequestReport report_;
  DecodeLeg decode_;
  PrefillLeg prefill_;
  // A node that drains gave the decode leg of this number up and keeps its KV; until it is sent.
  struct Retained {
    NodeKey node;
    uint32_t attempt = 0;
  };
  std::optional<Retained> retained_;

  // Bound: the context.
  std::vector<TokenId> sequence_;  // of the current placement: prompt, then delivered tokens
  int32_t base_ = 0;               // how many of them are delivered tokens
  // Bound: the context's blocks.
  std::vector<kv::BlockHash> hashes_;
  uint64_t hashes_generation_ = 0;  // 0 = none yet
  std::string numerics_id_;         // of the fleet that delivered the first token

  uint32_t last_attempt_ = 0;  // number of the last leg, of either kind
  int32_t attempts_ = 1;
  int refusals_ = 0;
  std::optional<PlacementFailure> in_the_way_;
  absl::Time queued_since_;
  absl::Time not_before_ = absl::InfinitePast();  // placed again
  absl::Time state_deadline_ = absl::InfiniteFuture();
  // Bound: one for each attempt within the time they are left out.
  std::vector<std::pair<NodeKey, absl::Time>> failed_;  // until when each is left out

  request::FinishReason ending_ = request::FinishReason::kNone;  // set: Settle emits RequestDone
  absl::Status failure_;  // not OK: Settle emits RequestFailed
};

}  // namespace tandem::router
