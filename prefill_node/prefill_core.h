// The prefill node's decisions. It computes prompts in chunks, pushes each layer's blocks to the
// decode node as soon as they are complete, and samples the first token.
//
// clang-format off
//   Prefill ─▶ Refused
//      └─▶ (loading) ─▶ (fetching) ─▶ Computing ──prompt's last row──▶ Pushed
//              │                                                         │
//              │         its blocks stay cached; it is gone ◀──ExportDone┘
//              └── abort, deadline, router lost, step failed ──▶ Abandoned
// clang-format on
//
// A prompt whose beginning lies in storage waits in StoredBlocks while that is read. One whose
// beginning lies on another node waits in FetchedPrompts while that is brought here. Both hold no
// sequence and no export yet, and are computed whatever becomes of the load and the fetch.
//
// A prompt whose decode node has room for its end only lends its first units while it is computed
// (common/node/borrower.h). It may be longer than this node's pool: it then takes blocks as it is
// computed, and its export opens when it has those of its end. FIN names the loans, and waits until
// all of these units are lent.
//
// ExportFailed ends an export in every phase. Blocks stay pinned until ExportDone or ExportFailed,
// whatever becomes of the leg. A pushed or abandoned prompt takes no slot of the batch.
//
// Thread safety: none; the engine thread (or the simulator) makes every call.
// Invariants: each sequence of the scheduler belongs to exactly one export; an export without an
// owner has been cancelled; each ordinal and layer is pushed at most once.
// Owner: NodeRuntime, or the simulator.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/node/node_core.h"
#include "common/node/node_resources.h"
#include "common/node/prompt_intake.h"

namespace tandem::prefill_node {

class PrefillCore final : public node::NodeCore {
 public:
  // Takes over. REQUIRES: `resources` are idle; they outlive the core.
  explicit PrefillCore(node::NodeResources& resources) : resources_(resources) {
    resources.BeginRole({.generates = false, .retry_alone = false});
  }

  v1::NodeRole role() const override { return v1::NODE_ROLE_PREFILL; }
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
  void OnLayerDone(int layer) override;
  void OnStepDone(const absl::StatusOr<std::vector<engine::SampledToken>>& result,
                  absl::Time now) override;
  v1::NodeLoad load() const override;
  int64_t held() const override {
    return resources_.held() + static_cast<int64_t>(exports_.size());
  }
  int64_t blocks_lendable() const override { return 0; }
  void BeginDrain(absl::Time now, absl::Duration time_left) override {
    resources_.BeginDrain(now, time_left);
  }
  // Prompts are not migrated: each is computed soon, and only this node has its blocks.
  void StartMigration(absl::Time, absl::Duration) override {}
  bool preparing() const override { return scheduler_.following_constraints(); }
  bool idle() const override { return exports_.empty() && resources_.idle(); }

 private:
  using SequenceId = node::SequenceId;
  using ExportId = transfer::ExportId;
  // A prompt that gets no creditor for its next units for so long is given up.
  static constexpr absl::Duration kStalledMax = absl::Seconds(5);
  struct Export {
    std::optional<node::LegKey> owner;  // nullopt once abandoned
    v1::Leg wire;
    std::string trace_id;
    Epoch epoch;
    SequenceId sequence;
    int64_t first_ordinal = 0;  // what the receiver lacks starts here
    absl::Duration time_allowed;
    absl::Time deadline;
    transfer::PeerAddress receiver;
    LeaseId lease;
    bool opened = false;          // the KV plane knows it
    int32_t lent_units = 0;       // that are to be lent
    bool fetch_declined = false;  // as in PrefillFinished, as the next one
    std::optional<v1::FetchedKv> fetched;
    // Of a prompt that is computed while units of it are still to be lent.
    std::optional<v1::GeneratedToken> first_token;
    // Of a prompt that lends: the tokens that were computed and the units that were lent, and the
    // wait for more.
    std::pair<int64_t, int32_t> progress;
    node::Borrower::Wait wait;
  };
  using Exports = std::map<ExportId, Export>;
  // Blocks that the running step completes.
  struct Push {
    ExportId export_id;
    int32_t first_ordinal = 0, ordinal_count = 0;
  };

  // `arrived`: the prompt, which may have waited for storage since.
  void Prefill(node::RouterKey router, const v1::Prefill& command, absl::Time arrived,
               absl::Time now);
  // A command whose load has ended.
  void Resubmit(const node::StoredBlocks::Ready& ready, absl::Time now);
  void Abort(node::RouterKey router, const v1::AbortLeg& command);
  // The fetch under `lease` is over: computes the prompt. `installed`: null unless all came.
  void EndFetching(LeaseId lease, const transfer::LeaseInstalled* installed, absl::Time now);
  // Errors: as ParseSequence and CheckBlocks.
  absl::StatusOr<node::SequenceInput> ParsePrompt(const v1::Prefill& command) const;
  // Errors: kInvalidArgument when the receiver lacks no block of the prompt, or this node cannot
  // lend what it is to lend.
  absl::Status CheckBlocks(const v1::Prefill& command, int64_t prompt_tokens) const;
  // The first block that the receiver lacks.
  int64_t FirstOrdinal(const v1::Prefill& command) const;
  // Admits the prompt and opens its export. `prompt` keeps all but its input.
  void Begin(node::RouterKey router, const v1::Prefill& command,
             node::PromptIntake::Prompt& prompt);

  // Opens the export, if the sequence has its blocks, and pushes what is computed.
  void OpenIfPossible(Exports::iterator it);
  // Forgets the leg, stops computing, cancels the export; its blocks stay until ExportFailed.
  void Abandon(Exports::iterator it, const std::string& reason);
  // Reports LegFailed and abandons the export. `lease_stands`: what was pushed is correct, so
  // another sender may continue.
  void Fail(Exports::iterator it, const absl::Status& status, bool lease_stands);
  // Reports that no node can continue the request, and abandons the export.
  void FailRequest(Exports::iterator it, const absl::Status& status);
  // Ends the prompts whose loans were lost.
  void FailSplitsLost();
  // Sends FIN of the prompts whose units are all lent.
  void FinishLent();
  // Whether it has waited too long for creditors.
  bool IsStalled(Export& exported, absl::Time now) const;
  void SendFin(Exports::iterator it);
  // Adds the first token to those of the step; returns what the router is told after it.
  std::pair<node::RouterKey, v1::NodeEvent> Finish(Exports::iterator it,
                                                   const engine::SampledToken& token);
  // The export is over: releases its sequence.
  void EndExport(Exports::iterator it);
  // Fills pushes_ from the planned step.
  void PlanPushes();

  void Handle(const transfer::ExportDone& event, absl::Time now);
  void Handle(const transfer::ExportFailed& event, absl::Time now);
  void Handle(const transfer::LeaseInstalled& event, absl::Time now) {
    if (resources_.Handle(event)) EndFetching(event.lease, &event, now);
  }
  void Handle(const transfer::LeaseFailed& event, absl::Time now) {
    if (resources_.Handle(event)) EndFetching(event.lease, nullptr, now);
  }
  void Handle(const transfer::EpochRaised&, absl::Time) {}
  void Handle(const transfer::LeaseDrained& event, absl::Time) { resources_.Handle(event); }

  node::NodeResources& resources_;
  node::SequenceScheduler& scheduler_ = resources_.scheduler();
  node::NodeLedger& ledger_ = resources_.ledger();
  node::PromptIntake intake_{resources_};
  // Bound: exports_max (4,096).
  Exports exports_;
  // Bound: one for each export.
  std::map<node::LegKey, Exports::iterator> legs_;
  std::map<SequenceId, Exports::iterator> by_sequence_;
  // Prompts that are computed and wait for creditors. Bound: one for each export.
  std::vector<ExportId> unfinished_;
  // Bound: the slices of one step.
  std::vector<Push> pushes_;  // of the running step
};

}  // namespace tandem::prefill_node
