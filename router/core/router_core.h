// The router's decisions as one state machine: which nodes belong to the fleet, which blocks they
// hold, where each request runs, and each request's life over its two legs. Clients' submissions,
// nodes' messages and the time go in; commands for nodes and events for clients come out. It has no
// thread, clock, socket or random device (Random is a seam), so the simulator runs the same code.
//
// The core checks what comes in and keeps the fleet and the index; RequestTable runs the requests.
// One sequence's states: router/core/sequence_machine.h.
//
// Thread safety: none; every call runs on the core's strand (RouterServer), or in the simulator.
// Invariants: a client sees each token index of each sequence once, in order, and for each sequence
// exactly one SequenceDone, or for the whole request one RequestFailed; every request has a
// deadline in every state; the index and the queues are bounded; commands go to joined nodes only.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/runtime/random.h"
#include "router/core/loan_broker.h"
#include "router/core/loan_planner.h"
#include "router/core/prefix_migration.h"
#include "router/core/request_input.h"
#include "router/core/request_table.h"
#include "router/core/retry_budget.h"
#include "router/core/router_actions.h"
#include "router/core/router_counters.h"
#include "router/core/router_options.h"
#include "router/fleet/fleet.h"
#include "router/fleet/model_identity.h"
#include "router/fleet/node_key.h"
#include "router/fleet/prefix_index.h"
#include "router/placement/pair_placement.h"
#include "tandem/v1/client.pb.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class RouterCore {
 public:
  // `random` outlives the core.
  RouterCore(const RouterOptions& options, const ModelIdentity& model, Random& random);
  RouterCore(const RouterCore&) = delete;
  RouterCore& operator=(const RouterCore&) = delete;

  // Takes a request on. kAlreadyExists for a running id; kResourceExhausted when the router is
  // full; kInvalidArgument when no node could ever hold the request (names the largest). Later
  // failures arrive as RequestFailed: kUnavailable, naming the missing kind of node, when no node
  // takes the request within the queue deadline.
  absl::Status Submit(RequestInput input, absl::Time now);
  // Ends a request: the client left or aborted it. Aborts all legs; a SequenceDone with `reason`
  // follows for each running sequence. Idempotent: unknown ids are ignored.
  void Finish(const RequestId& id, request::FinishReason reason, absl::Time now);
  // Ends one sequence, whose stop string appeared (kStop). Otherwise as Finish.
  void FinishSequence(const RequestId& id, int32_t sequence_index, request::FinishReason reason,
                      absl::Time now);

  // A node's stream began with `registration`. kFailedPrecondition when the model, the numerics id
  // or the way to name blocks differs (names both); kInvalidArgument for a bad registration. A
  // newer incarnation of a known node id replaces the older stream (a disconnect action).
  absl::StatusOr<v1::Welcome> NodeJoined(NodeKey key, const v1::Registration& registration,
                                         absl::Time now);
  // Any message after the registration. A message that is not valid disconnects the node.
  void OnNodeMessage(NodeKey key, const v1::NodeMessage& message, absl::Time now);
  // The stream ended.
  void NodeLost(NodeKey key, const absl::Status& why, absl::Time now);
  // Handles deadlines, silent nodes and the queue. Call at least every 50 ms.
  void OnTick(absl::Time now);

  // What the calls since the last TakeActions want done. What `actions` held is dropped, and its
  // memory used again, so a caller passes the same one each time.
  void TakeActions(RouterActions& actions) {
    actions.clear();
    if (!actions_.empty()) actions.swap(actions_);
  }
  RouterActions TakeActions() { return std::exchange(actions_, {}); }
  v1::GetStatusResponse GetStatus(absl::Time now) const;
  v1::ListRequestsResponse ListRunning(const RunningQuery& query, absl::Time now) const {
    return table_.ListRunning(query, now);
  }
  // For the status: streams that were refused before the core heard of them, so far.
  void SetStreamsRefused(int64_t count) { streams_refused_ = count; }
  // Of the fleet; empty while no node has joined.
  std::string numerics_id() const { return fleet_.numerics_id(); }
  // Tokens of the longest prompt and answer that the router can serve: the model's context, or what
  // the largest decode node holds if that is less.
  int64_t context_tokens() const;
  // Likewise of the longest prompt, which is less where nodes lend each other memory.
  int64_t prompt_tokens() const;
  RequestCounts request_counts() const { return table_.counts(); }

  // For checks by tests and the simulator.
  const Fleet& fleet() const { return fleet_; }
  const PrefixIndex& index() const { return index_; }
  // Sequences in the admission queue.
  int64_t sequences_queued() const { return table_.queued(); }
  int64_t deadlines() const { return table_.deadlines(); }
  int64_t sequences_settled() const { return table_.settled(); }
  int64_t loans_planned() const { return planner_.plans(); }
  std::array<int64_t, 5> sequences_by_state() const { return table_.sequences_by_state(); }

 private:
  // `capacity`, tokens; at most the model's context, and that while no decode node has joined.
  int64_t AtMostTheModels(int64_t capacity) const;
  absl::Status CheckAdmission(const RequestInput& input, absl::Time now) const;
  // Whether the table has room for the request. kResourceExhausted, with the seconds after which to
  // ask again.
  absl::Status CheckRoom(const RequestInput& input, absl::Time now);
  // A decode node that has left may come back: requests that do not fit the others wait for 10 s.
  // While nodes that lend join and leave, what they can borrow of each other changes: such requests
  // wait until nothing has changed for 10 s.
  bool NodesSettled(absl::Time now) const;
  // Until all nodes of a fleet that starts have joined, a tenant's share is a part of too little:
  // prompts beyond it wait until nothing has changed for 10 s.
  bool SharesSettled(absl::Time now) const;
  // Whether the tenant's share of the KV blocks can hold the prompt.
  absl::Status CheckShare(const RequestInput& input) const;
  // Whether the largest decode node can hold the request, with what others lend.
  absl::Status CheckCapacity(const RequestInput& input) const;
  // kDataLoss when a message of the stream is missing.
  absl::Status CheckSequenceNumber(Node& node, const v1::NodeMessage& message) const;
  absl::Status OnNodeEvent(Node& node, const v1::NodeEvent& event, absl::Time now);
  // An event about the leg that its `body` names.
  template <typename Event>
  absl::Status OnLegEvent(const Node& node, const v1::NodeEvent& event, const Event& body,
                          absl::Time now);
  // Of a prefill leg that ended, or a decode leg that has its KV or ended. Also passes on what a
  // sequence lent that has ended here. `event`: bounded.
  absl::Status OnLegReport(const Node& node, const v1::NodeEvent& event, absl::Time now);
  // kInvalidArgument for lists of different lengths.
  absl::Status OnTokens(const Node& node, const v1::TokensGenerated& tokens, absl::Time now);
  // Takes what the node says of its steps, its storage and its links to creditors.
  // kInvalidArgument, naming the node, for a figure that is negative or not finite.
  absl::Status OnCosts(Node& node, const v1::NodeMessage& message);
  absl::Status OnBlocks(const Node& node, const v1::NodeEvent& event);
  void Disconnect(NodeKey key, const absl::Status& why, absl::Time now);
  void NoteTime(absl::Time now);
  // The time in which this router did not run counts as no node's silence.
  void ForgiveOwnStop(absl::Time now);

  const RouterOptions options_;
  const ModelIdentity model_;
  RetryBudget retries_;
  kv::BlockHasher hasher_;
  Fleet fleet_;
  PrefixIndex index_;
  PairPlacement placement_;
  RouterActions actions_;
  RouterCounters counters_;
  RequestTable table_;
  PrefixMigration migration_;
  LoanBroker loans_;
  LoanPlanner planner_;
  int64_t streams_refused_ = 0;
  const uint64_t incarnation_;
  std::optional<absl::Time> started_;
  absl::Time last_tick_ = absl::InfinitePast();
  absl::Time nodes_changed_ = absl::InfinitePast();     // a node joined or left
  absl::Time decode_node_left_ = absl::InfinitePast();  // the last one
  // When requests that waited for nodes to settle were last checked.
  absl::Time waiting_checked_ = absl::InfinitePast(), shares_checked_ = absl::InfinitePast();
  // OnTokens fills it for each token of a list, so that it allocates nothing.
  v1::TokensGenerated::Step plain_step_;
};

}  // namespace tandem::router
