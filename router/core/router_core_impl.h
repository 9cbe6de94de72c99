// RouterCore's implementation: owns the fleet, the index and the request machines, hands each event
// to the machine it names, and retries the queue when room may have appeared.
// Thread safety: none, as RouterCore.
// Invariants: sequences, their groups, their deadlines and the queue name the same requests; a
// sequence that is kQueued is in the queue or held; commands go to joined nodes only.
#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "router/core/deadline_queue.h"
#include "router/core/request_group.h"
#include "router/core/request_machine.h"
#include "router/core/retry_budget.h"
#include "router/core/router_core.h"
#include "router/fleet/fleet.h"
#include "router/fleet/prefix_index.h"
#include "router/placement/pair_placement.h"

namespace tandem::router {

class RouterCoreImpl final : public RouterCore {
 public:
  RouterCoreImpl(const RouterOptions& options, const ModelIdentity& model, Random& random);

  absl::Status Submit(RequestInput input, absl::Time now) override;
  void Finish(const RequestId& id, request::FinishReason reason, absl::Time now) override;
  void FinishSequence(const RequestId& id, int32_t sequence_index, request::FinishReason reason,
                      absl::Time now) override;
  absl::StatusOr<v1::Welcome> NodeJoined(NodeKey key, const v1::Registration& registration,
                                         absl::Time now) override;
  void OnNodeMessage(NodeKey key, const v1::NodeMessage& message, absl::Time now) override;
  void NodeLost(NodeKey key, const absl::Status& why, absl::Time now) override;
  void OnTick(absl::Time now) override;
  RouterActions TakeActions() override;
  v1::GetStatusResponse GetStatus(absl::Time now) const override;
  void SetStreamsRefused(int64_t count) override { streams_refused_ = count; }
  std::string numerics_id() const override { return fleet_.numerics_id(); }
  int64_t context_tokens() const override;
  int64_t requests_running() const override { return static_cast<int64_t>(groups_.size()); }

  const Fleet& fleet() const { return fleet_; }
  const PrefixIndex& index() const { return index_; }
  int64_t requests_queued() const { return static_cast<int64_t>(queue_.size()); }
  int64_t deadlines() const { return static_cast<int64_t>(deadlines_.size()); }
  // How many sequences are in each RequestMachine::State, kDone left out.
  std::array<int64_t, 5> requests_by_state() const;

 private:
  // One sequence of a request.
  struct Sequence {
    std::unique_ptr<RequestMachine> machine;
    RequestGroup* group = nullptr;
  };

  absl::Status CheckAdmission(const RequestInput& input) const;
  absl::Status CheckSequenceNumber(Node& node, const v1::NodeMessage& message) const;
  RequestMachine* FindSequence(const v1::Leg& leg, Serial& serial);
  // ---- groups: request_groups.cc
  Serial AddSequence(RequestGroup& group, RequestInput input, absl::Time now);
  void AddSequences(RequestGroup& group, RequestInput input, absl::Time now);
  void StartSearch(RequestGroup& group, RequestInput input, absl::Time now);
  void AddBeams(RequestGroup& group, absl::Time now);
  // The running beams' step is complete.
  void AdvanceSearch(RequestGroup& group, absl::Time now);
  void EmitBeams(RequestGroup& group, absl::Time now);
  // After events: emits the sequence's outcome, then files it where its state belongs.
  void Settle(Serial serial, absl::Time now);
  void TakeStep(RequestGroup& group, RequestMachine::Outcome& outcome, int32_t sequence_index);
  void Emit(const RequestGroup& group, RequestMachine::Outcome& outcome, int32_t sequence_index);
  // A queued sequence waits for room, or for its leader.
  void File(Serial serial);
  bool IsQueued(Serial serial) const;
  // A held sequence need not wait for its leader any more.
  void Release(RequestGroup& group, Serial serial, absl::Time now);
  // Forgets the request; its sequences' legs have ended.
  void DropGroup(RequestGroup& group);
  void FailGroup(RequestGroup& group, const absl::Status& why);
  // Where a sequence of a group should be placed.
  std::optional<NodeKey> BesideOf(const Sequence& sequence) const;
  void SettleTouched(absl::Time now);
  void OnNodeEvent(Node& node, const v1::NodeEvent& event, absl::Time now);
  template <typename Event>
  void Dispatch(NodeKey key, const v1::NodeEvent& event, const Event& body, absl::Time now);
  // kInvalidArgument for lists that do not go together.
  absl::Status OnTokens(const Node& node, const v1::TokensGenerated& tokens, absl::Time now);
  absl::Status OnBlocks(Node& node, const v1::NodeEvent& event);
  // ---- prefix_migration.cc
  const Node* SuccessorOf(const Node& node) const;
  // kInvalidArgument for hashes that are none.
  absl::Status OnBlocksOffered(const Node& node, const v1::BlocksOffered& offered);
  void OnBlocksWanted(const Node& node, const v1::BlocksWanted& wanted);
  void Disconnect(NodeKey key, const absl::Status& why, absl::Time now);
  void PlaceQueued(absl::Time now);
  // Forgets the sequence.
  void Remove(Serial serial);
  void NoteTime(absl::Time now);

  const RouterOptions options_;
  const ModelIdentity model_;
  Random& random_;
  RetryBudget retries_{random_};
  Fleet fleet_;
  PrefixIndex index_;
  PairPlacement placement_;
  RouterActions actions_;
  RouterCounters counters_;
  int64_t streams_refused_ = 0;
  const uint64_t incarnation_;
  std::optional<absl::Time> started_;

  Serial last_serial_ = 0;
  // Bound: --requests-max.
  absl::btree_map<Serial, Sequence> sequences_;
  absl::flat_hash_map<std::string, std::unique_ptr<RequestGroup>> groups_;  // by request id
  // Bound: --queue-max.
  absl::btree_set<std::pair<int32_t, Serial>> queue_;  // by priority, then oldest first
  DeadlineQueue deadlines_;
  // Bound: the sequences of one message, cleared after it.
  std::vector<Serial> touched_;           // by the message being handled
  v1::TokensGenerated::Step plain_step_;  // one of a list's tokens, in the same objects each time
};

}  // namespace tandem::router
