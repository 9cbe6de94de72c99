// The running requests: each with its group of sequences, each sequence with its machine. The table
// hands events to the machine that they name, and afterwards settles it: it emits what the machine
// has to tell the client, and puts the sequence where its state belongs (the admission queue, held
// behind its leader, or nowhere when it has ended).
//
// A request of several sequences is one life for each, under one id. The leader, the lowest live
// sequence, runs first; the others are held until its prompt is installed, and then follow it to
// its decode node.
//
// Thread safety: none; the core owns it, on the core's strand.
// Invariants: sequences, groups, deadlines and the queue name the same requests; a sequence that is
// kQueued is either in the queue or held.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/core/admission_queue.h"
#include "router/core/deadline_queue.h"
#include "router/core/queue_drain.h"
#include "router/core/request_input.h"
#include "router/core/running_requests.h"
#include "router/core/sequence_context.h"
#include "router/core/sequence_group.h"
#include "router/core/sequence_machine.h"
#include "router/core/serial.h"
#include "router/fleet/tenant_blocks.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::router {

class RequestTable {
 public:
  explicit RequestTable(const SequenceContext& context) : context_(context) {}

  // Adds a request that passed admission, and places what can be placed. kResourceExhausted when it
  // would have to wait and queue_max sequences wait already, or its first token would come too late
  // and such requests are refused. But a full queue is shared by weight: a request of a tenant that
  // has less than another in it takes the place of that tenant's last, which fails.
  // REQUIRES: !Contains(input.id).
  absl::Status Submit(RequestInput input, absl::Time now);
  // As RouterCore's methods of these names.
  void Finish(const RequestId& id, request::FinishReason reason, absl::Time now);
  void FinishSequence(const RequestId& id, int32_t sequence_index, request::FinishReason reason,
                      absl::Time now);

  // Whether the leg's sequence has not ended.
  bool Runs(const v1::Leg& leg) const { return by_serial_.contains(leg.number()); }
  // Events of a node about the leg of one sequence; ignored if no sequence has the leg. After the
  // events of one message, call SettleTouched.
  void OnEvent(NodeKey node, const v1::Leg& leg, const v1::NodeEvent& event, absl::Time now);
  void OnTokens(NodeKey node, const v1::TokensGenerated::Step& step, absl::Time now);
  // Settles each sequence that an event touched since the last call.
  void SettleTouched(absl::Time now);
  // What a decode node's pool holds for tenants.
  void OnTenantBlocks(NodeKey node, const v1::NodeMessage& message) {
    tenant_blocks_.OnReport(node, message);
  }
  // Tells every sequence, and settles those that the node had. REQUIRES: the node has left the
  // fleet.
  void OnNodeLost(NodeKey node, const absl::Status& why, absl::Time now);
  // Handles the deadlines that have passed.
  void OnTick(absl::Time now);
  // Fails the requests of which nothing has been computed and nothing is placed, and that `check`
  // finds fault with.
  void FailWaiting(absl::FunctionRef<absl::Status(const RequestInput&)> check);
  // Places queued sequences for which there may be room now.
  void PlaceQueued(absl::Time now);
  // The same after a message of a node, most of which make no room: does nothing if since the last
  // walk no node has come to have more room and no sequence was queued. What time alone changes,
  // and a round of walks that has not tried all, wait for the next tick.
  void PlaceIfRoomGrew(absl::Time now);

  bool Contains(const RequestId& id) const { return groups_.contains(id.value()); }
  // The requests that `query` asks for, by the age of their oldest live sequence.
  v1::ListRequestsResponse ListRunning(const RunningQuery& query, absl::Time now) const;
  RequestCounts counts() const {
    return {groups_running_, static_cast<int64_t>(groups_.size()) - groups_running_};
  }
  // Those that beam searches may still come to run at a time included.
  int64_t sequences() const { return static_cast<int64_t>(sequences_.size()) + beams_not_running_; }
  // What the running requests may come to hold: RequestInput::HeldBytesMax of all.
  int64_t held_bytes() const { return held_bytes_; }
  int64_t queued() const { return static_cast<int64_t>(queue_.size()); }
  // The tokens that queued sequences need room for, of `most` at most, the oldest first.
  std::vector<int64_t> WaitingTokens(size_t most) const;
  // Seconds after which `sequences` of those here are predicted to have been taken by nodes: when a
  // client that is refused should ask again.
  int64_t RetrySeconds(int64_t sequences, absl::Time now);
  int64_t deadlines() const { return static_cast<int64_t>(deadlines_.size()); }
  // How often a sequence was looked at after events, for tests.
  int64_t settled() const { return settled_; }
  // How many sequences are in each SequenceMachine::State, kDone left out.
  std::array<int64_t, 5> sequences_by_state() const;

 private:
  struct Sequence {
    std::unique_ptr<SequenceMachine> machine;
    SequenceGroup* group = nullptr;
    // The decode node whose room is kept for it while it waits.
    std::optional<NodeKey> kept;
    bool counted_placed = false;              // in its group
    int64_t blocks = 0;                       // of its decode leg, in tenant_blocks_
    absl::Time due = absl::InfiniteFuture();  // in deadlines_
  };
  // Walks the admission queue.
  class Placing;

  // The running sequence whose number the leg carries; nullptr when there is none, or when the leg
  // gives that number another name. The name alone finds nothing: a client may use a request id
  // again while events of the earlier request are on their way.
  SequenceMachine* FindSequence(const v1::Leg& leg, Serial& serial);
  void AddSequence(SequenceGroup& group, RequestInput input, absl::Time now);
  void AddSequences(SequenceGroup& group, RequestInput input, absl::Time now);
  // Adds the sequences of the beam search's current step.
  void AddBeams(SequenceGroup& group, absl::Time now);
  // All sequences of the beam search's step have ended.
  void AdvanceSearch(SequenceGroup& group, absl::Time now);
  // Emits what the sequence has to say, then queues, holds, releases or removes it. Ignores ended
  // ones.
  void Settle(Serial serial, absl::Time now);
  // Counts what it has had computed since the last call: its prompt if that begins, and `generated`
  // tokens.
  void ChargeTenant(Serial serial, const Sequence& sequence, int64_t generated);
  // Removes a sequence whose machine is done. The next one of the request leads; after the last one
  // the beam search goes on, or the request is over.
  void EndSequence(Serial serial, SequenceGroup& group, absl::Time now);
  // nullptr when it has ended.
  Sequence* Find(Serial serial) const {
    const auto it = by_serial_.find(serial);
    return it == by_serial_.end() ? nullptr : it->second;
  }
  void Emit(const SequenceGroup& group, SequenceMachine::Outcome& outcome, int32_t sequence_index);
  // Counts the sequence, and with its first one the request, as placed or not.
  void CountPlaced(Sequence& sequence, bool placed);
  // Queues a kQueued sequence, or holds it behind its leader.
  void QueueOrWaitForLeader(Serial serial);
  bool IsQueued(Serial serial) const;
  // Its place in the queue, whether it is there or not.
  AdmissionQueue::Position PositionOf(Serial serial) const;
  // The sequence's request goes behind others in the queue.
  void SetLate(Serial serial);
  // Queues a held sequence.
  void Release(SequenceGroup& group, Serial serial, absl::Time now);
  // KV blocks that the sequence's decode leg holds or will hold at first; those that it shares with
  // its leader count for the leader. 0 while no node has joined.
  int64_t BlocksOf(Serial serial, const Sequence& sequence) const;
  // Counts them for the tenant, if it has a share; none unless the sequence is `placed`.
  void CountBlocks(Serial serial, Sequence& sequence, bool placed);
  // Whether they would exceed the tenant's share.
  bool ExceedsShare(Serial serial, const Sequence& sequence) const;
  // The decode node that a sequence should share with its group.
  std::optional<NodeKey> BesideOf(const SequenceGroup& group) const;
  void FailGroup(SequenceGroup& group, const absl::Status& why);
  // What a queued prompt waits for: nodes end what they have, then they take those of its tenant
  // that are before it, but for those that will be too late themselves. At least, because other
  // tenants have turns as well. Looks at 1,024 sequences at most.
  struct Wait {
    absl::Duration before;  // when nodes are predicted to begin with it; 0 = not known
    absl::Duration usual;   // the mean of what prompts before it take; 0 = not known
  };
  Wait WaitBefore(Serial serial, absl::Time now) const;
  // With the seconds after which to ask again, if time heals it.
  absl::Status WithHint(const absl::Status& why, absl::Time now);
  // A request of `tenant` has joined the queue. If that is longer than queue_max, it takes the
  // place of one request: the last waiting one of the tenant that has most in the queue, which
  // fails. False: no other tenant has more. What enters the queue in other ways, such as the
  // sequences of a lost node, may make it longer than queue_max, and costs no waiting request its
  // place.
  bool FitQueue(const std::string& tenant, absl::Time now);
  // The tenant's last request in the queue of which nothing was computed and nothing is placed.
  // nullptr: none among its last kLastOnes.
  SequenceGroup* LastWaiting(const std::string& tenant) const;
  absl::Status QueueIsFull(absl::Time now);
  // Forgets the request. REQUIRES: the legs of its sequences have ended.
  void DropGroup(SequenceGroup& group);
  // The sequence is to be looked at when its machine's deadline has come.
  void SetDeadline(Serial serial, Sequence& sequence);
  // Forgets the sequence.
  void Remove(Serial serial);
  std::pair<uint64_t, uint64_t> ChangesSoFar() const {
    return {context_.fleet.order().room_grown(), queue_.inserted()};
  }

  const SequenceContext context_;
  Serial last_serial_ = 0;
  // Bound: --requests-max.
  absl::btree_map<Serial, std::unique_ptr<Sequence>> sequences_;
  // Bound: --requests-max.
  absl::flat_hash_map<Serial, Sequence*> by_serial_;  // those of sequences_: each token looks here
  // Bound: --requests-max.
  absl::flat_hash_map<std::string, std::unique_ptr<SequenceGroup>> groups_;  // by request id
  int64_t groups_running_ = 0;                                               // see RequestCounts
  int64_t held_bytes_ = 0;
  // By how much beam searches run fewer sequences than they are wide.
  int64_t beams_not_running_ = 0;
  int64_t settled_ = 0;
  TenantBlocks tenant_blocks_;
  AdmissionQueue queue_;
  QueueDrain drain_;
  // ChangesSoFar after the last walk.
  std::pair<uint64_t, uint64_t> walked_at_;
  DeadlineQueue deadlines_;
  // Bound: the sequences of one message, cleared after it.
  std::vector<Serial> touched_;  // by the message being handled
};

}  // namespace tandem::router
