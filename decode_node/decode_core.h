// The decode node's decisions. It reserves room for a sequence, has the prompt's KV sent to it by
// another node (or computes the prompt itself, when little of it is missing), and generates tokens
// in a continuous batch.
//
//   StartDecode ─▶ Refused
//        │
//        ├─▶ Receiving ──LeaseInstalled──▶ Generating ──stop, length──▶ LegFinished, gone
//        │       │                             │
//        │       │ NewEpoch; this node         └── StartMigration, end of step ──▶ retained
//        │       │ computes the rest                     (retained_sequences.h), then gone
//        │       ▼
//        │    Closing ──LeaseDrained──▶ Computing ──first token──▶ Generating
//        │                                  ▲
//        └── computes the whole prompt ─────┘
//
// Of a prompt that this node cannot hold it may receive the end only, where a prefill node lends
// the units before it: it then takes these loans over when the lease is installed, and the sequence
// sits out steps until they are granted (common/node/borrower.h).
//
// A command whose prompt's beginning lies in storage waits in StoredBlocks, before any of this,
// while that is read; one whose beginning lies on another node waits in FetchedPrompts. A Receiving
// leg answers LeaseFailed with LegFailed{sender_side} and waits for NewEpoch; after EpochRaised it
// answers Reserved again, for another sender. An abort, a deadline or the loss of the router ends a
// leg in every phase. If the leg had a lease, the lease's blocks stay quarantined until
// LeaseDrained.
//
// Thread safety: none; the engine thread (or the simulator) makes every call.
// Invariants: each leg holds one sequence of the scheduler; a Receiving leg has exactly one open
// lease; a lease's blocks are never released while the KV plane may write them.
// Owner: NodeRuntime, or the simulator.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "common/node/node_core.h"
#include "common/node/node_resources.h"
#include "common/node/prompt_intake.h"
#include "decode_node/retained_sequences.h"

namespace tandem::decode_node {

class DecodeCore final : public node::NodeCore {
 public:
  // Well below the time without a token after which routers give a leg up (--token-deadline).
  static constexpr absl::Duration kWaitingInterval = absl::Milliseconds(500);

  // Takes over. REQUIRES: `resources` are idle; they outlive the core.
  explicit DecodeCore(node::NodeResources& resources) : resources_(resources) {
    resources.BeginRole({.generates = true, .retry_alone = true});
  }

  v1::NodeRole role() const override { return v1::NODE_ROLE_DECODE; }
  void OnRouterJoined(node::RouterKey router, absl::Time) override {
    resources_.OnRouterJoined(router);
  }
  void OnRouterLost(node::RouterKey router, absl::Time now) override;
  void OnCommand(node::RouterKey router, const v1::NodeCommand& command, absl::Time now) override;
  void OnTransfer(const transfer::TransferEvent& event, absl::Time now) override;
  void OnLending(const lending::LendingEvent& event, absl::Time now) override {
    resources_.OnLending(event, now);
  }
  void OnStorage(const storage::StorageEvent& event, absl::Time now) override {
    for (const node::StoredBlocks::Ready& ready : resources_.OnStorage(event, now))
      Resubmit(ready, now);
  }
  void OnTick(absl::Time now) override;
  absl::Span<const engine::SequenceSlice> PlanStep(absl::Time now) override;
  void OnLayerDone(int) override {}
  void OnStepDone(const absl::StatusOr<std::vector<engine::SampledToken>>& result,
                  absl::Time now) override;
  v1::NodeLoad load() const override;
  int64_t held() const override { return resources_.held() + own_leases() + retained_.exports(); }
  int64_t blocks_lendable() const override { return resources_.borrower().blocks_lendable(); }
  void BeginDrain(absl::Time now, absl::Duration time_left) override {
    resources_.BeginDrain(now, time_left);
  }
  void StartMigration(absl::Time now, absl::Duration time_left) override;
  bool preparing() const override { return scheduler_.following_constraints(); }
  bool idle() const override { return draining_leases_.empty() && resources_.idle(); }

 private:
  int64_t own_leases() const {
    return static_cast<int64_t>(by_lease_.size() + draining_leases_.size());
  }
  using SequenceId = node::SequenceId;
  using Progress = node::ConstraintTurns::Progress;
  enum class Phase { kReceiving, kClosing, kComputing, kGenerating };
  struct Leg {
    v1::Leg wire;
    std::string trace_id;
    Phase phase = Phase::kReceiving;
    SequenceId sequence;
    int32_t output_tokens = 0;  // of the answer so far, delivered ones included
    absl::Duration time_allowed;
    absl::Time deadline;  // for the first token; there is none after it
    LeaseId lease;        // while receiving
    Epoch epoch;
    int64_t first_ordinal = 0;  // of the lease's blocks
    int32_t lent_units = 0;     // before them, whose loans are taken over
    int64_t lease_blocks = 0;
    int64_t received_tokens = 0;           // after the cached ones: verified, from a lost sender
    int64_t local_prefill_tokens_max = 0;  // as NewEpoch said
  };
  using Legs = std::map<node::LegKey, Leg>;

  // `arrived`: the prompt, which may have waited for storage since.
  void StartDecode(node::RouterKey router, const v1::StartDecode& command, absl::Time arrived,
                   absl::Time now);
  // A command whose load has ended.
  void Resubmit(const node::StoredBlocks::Ready& ready, absl::Time now);
  // Errors: as ParseSequence, and for local_prefill_tokens_max below -1.
  absl::StatusOr<node::SequenceInput> ParsePrompt(node::RouterKey router,
                                                  const v1::StartDecode& command) const;
  // The fetch under `lease` is over: admits the prompt that waited for it. `installed`: null unless
  // all came.
  void EndFetching(LeaseId lease, const transfer::LeaseInstalled* installed, absl::Time now);
  // Begins the leg, or refuses it. `prompt` keeps all but its input.
  void Admit(node::RouterKey router, const v1::StartDecode& command,
             node::PromptIntake::Prompt& prompt);
  void NewEpoch(node::RouterKey router, const v1::NewEpoch& command, absl::Time now);
  void Abort(node::RouterKey router, const v1::AbortLeg& command);

  // Decides whether this node computes the prompt or another one sends it, and answers Reserved.
  // `waited`: for the fetch of the prompt's beginning; nullopt: it was not tried.
  void Reserve(Legs::iterator leg, const v1::StartDecode& command,
               const std::optional<node::FetchedPrompts::Waiting>& waited);
  // Whether another node can send the prompt here; decides which first units it is to lend.
  bool CanReceive(Leg& leg, int64_t prefill_blocks);
  // Ends a leg for whose prompt there are too few window slots.
  void RefuseForSlots(Legs::iterator leg);
  // Whether this node can compute the rest of a prompt of which it received the beginning. What is
  // received of windowed layers is the prompt's end.
  bool ContinuesReceived() const { return !scheduler_.spec().layout.windowed(); }
  // Releases what a leg holds and forgets the leg.
  void End(Legs::iterator leg, const std::string& reason);

  void Handle(const transfer::LeaseInstalled& event, absl::Time now);
  void Handle(const transfer::LeaseFailed& event, absl::Time now);
  void Handle(const transfer::EpochRaised& event, absl::Time now);
  void Handle(const transfer::LeaseDrained& event, absl::Time now);
  void Handle(const transfer::ExportDone& event, absl::Time) {
    resources_.Handle(event);
    retained_.Handle(event);
  }
  void Handle(const transfer::ExportFailed& event, absl::Time now) {
    resources_.Handle(event, now);
    retained_.Handle(event);
  }

  // Tells the router that the sequence is in the running batch. `received`: the lease that
  // delivered its KV; null: this node computed it.
  void SendInstalled(const Legs::value_type& leg, const v1::TokensBySource& tokens,
                     const transfer::LeaseInstalled* received);
  // An answer's next token was appended to its sequence; says whether and why it was the last.
  // kNone, too, while the answer's constraint is to be asked: FollowConstraints then says it.
  // Errors: as SequenceScheduler::AdvanceConstraint.
  absl::StatusOr<request::FinishReason> OnAppended(Leg& leg, const node::Sequence& sequence);
  // Whether and why the last token of an answer was the last, when its constraint has read it.
  request::FinishReason ReasonToFinish(const Leg& leg, const node::Sequence& sequence,
                                       Progress progress) const;
  // The same when the constraint has a fault: the fault if the answer has no token or would go on,
  // or if the constraint did not read the last token.
  absl::StatusOr<request::FinishReason> ReasonDespite(const absl::Status& fault, const Leg& leg,
                                                      const node::Sequence& sequence) const;
  // Ends the legs whose constraints have found an end or a fault in what was read late.
  void FollowConstraints();
  // Reports that no node can continue the request, then ends the leg.
  void FailRequestAndEnd(Legs::iterator leg, const absl::Status& status, const std::string& reason);
  // Reports LegFailed, then ends the leg.
  void FailAndEnd(Legs::iterator leg, const absl::Status& status, const std::string& reason);
  // Logs what a leg's loans cost it, if its sequence had any; the other one reports it.
  void LogLentUse(const Leg& leg) const;
  void AddLentUse(const Leg& leg, v1::LegFinished& finished) const;
  bool LentSome(const Leg& leg) const {
    return !scheduler_.Get(leg.sequence).lent_use.creditors.empty();
  }
  // Whether blocks come back that no sequence in a queue holds, by a deadline of their own.
  bool AwaitsBlocks() const { return own_leases() > 0 || resources_.awaits_blocks(); }
  // Ends the legs of sequences that get no memory.
  void EndStarved(absl::Time now);
  // Tells the routers, each kWaitingInterval, which legs that generate wait: no node is at fault.
  void ReportWaiting(absl::Time now);
  // Fails a leg that cannot be retained, because the node drains.
  void GiveUpForDrain(Legs::iterator leg);
  // Ends the leg and retains its sequence, whose next token is `next`, for another node.
  void Retain(Legs::iterator leg, const engine::SampledToken& next);
  // Reports LegFinished, then ends the leg.
  void Finish(Legs::iterator leg, request::FinishReason reason,
              const std::string& why = "finished");

  node::NodeResources& resources_;
  node::SequenceScheduler& scheduler_ = resources_.scheduler();
  node::NodeLedger& ledger_ = resources_.ledger();
  node::PromptIntake intake_{resources_};
  // Bound: --max-sequences and 1,024 waiting.
  Legs legs_;
  // Bound: one for each leg.
  absl::flat_hash_map<SequenceId, Legs::iterator> by_sequence_;
  // Bound: leases_max (4,096).
  std::map<LeaseId, Legs::iterator> by_lease_;
  // Bound: the pool's blocks: each holds some.
  std::map<LeaseId, std::vector<BlockId>> draining_leases_;  // quarantined blocks
  RetainedSequences retained_{scheduler_, ledger_};
  absl::Time next_waiting_report_ = absl::InfinitePast();
  // Set once the migration began: until when a sequence can still be retained.
  std::optional<absl::Time> migration_until_;
};

}  // namespace tandem::decode_node
