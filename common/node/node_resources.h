// What a node holds whatever its role: the KV pool and the sequences over it, blocks in storage,
// blocks that move from and to other nodes, loans to and from them, and what the node has to tell
// others. A core (PrefillCore, DecodeCore) refers to one, and keeps only its legs and what belongs
// to its role. So a node that is idle can get a core of the other role: the blocks, the ids of
// leases, exports and loans, the counters and the learned costs stay.
//
// Thread safety: none; the engine thread (or the simulator) makes every call.
// Invariants: at most one core uses it at a time. A core takes over only while idle().
// Owner: NodeRuntime, or the simulator; it outlives its core.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/cost/copy_profile.h"
#include "common/cost/step_cost.h"
#include "common/kv/block_hash.h"
#include "common/kv/block_owners.h"
#include "common/lending/lending.h"
#include "common/node/borrower.h"
#include "common/node/fetched_prompts.h"
#include "common/node/lender.h"
#include "common/node/node_core.h"
#include "common/node/node_ledger.h"
#include "common/node/prefix_fetch.h"
#include "common/node/prefix_migration.h"
#include "common/node/sequence_scheduler.h"
#include "common/node/stored_blocks.h"

namespace tandem::node {

class NodeResources {
 public:
  // REQUIRES: positive num_blocks, max_batch_tokens and max_sequences.
  explicit NodeResources(const SchedulerOptions& options)
      : scheduler_(options),
        stored_blocks_(scheduler_, ledger_, options.stored_blocks),
        borrower_(scheduler_, ledger_, options.borrows),
        lender_(scheduler_, ledger_, options.lend_blocks_max) {}
  // Its parts refer to each other.
  NodeResources(const NodeResources&) = delete;
  NodeResources& operator=(const NodeResources&) = delete;

  // ---- for the driver
  // Everything since the last call. What `actions` held is dropped, and its memory used again, so
  // a driver passes the same one each time.
  void TakeActions(NodeActions& actions);
  NodeActions TakeActions() {
    NodeActions actions;
    TakeActions(actions);
    return actions;
  }
  // An event that the driver has sent and needs no more: a later one may use its memory.
  void Recycle(v1::NodeEvent&& event) { ledger_.Recycle(std::move(event)); }
  v1::NodeCounters counters() const { return ledger_.CountersWith(scheduler_); }
  // What the pool holds for tenants with a share.
  std::vector<kv::BlockOwners::Counts> owner_counts() const { return scheduler_.owner_counts(); }
  // What the steps cost, learned from those that ran.
  cost::StepProfile step_profile() const { return scheduler_.meter().cost().profile(); }
  // Likewise reading and writing its storage; nullopt without one. The driver knows where it lies.
  std::optional<cost::StorageProfile> storage_profile() const { return stored_blocks_.profile(); }
  // Likewise the links to its creditors, as Borrower says.
  void OnRoundTrips(absl::Span<const lending::LinkRoundTrip> round_trips) {
    borrower_.OnRoundTrips(round_trips);
  }
  google::protobuf::RepeatedPtrField<v1::CreditorLink> creditor_links() const {
    return borrower_.links();
  }
  int64_t creditor_links_version() const { return borrower_.links_version(); }
  // Hashes of the full blocks held, parents first.
  std::vector<kv::BlockHash> CachedBlocks() const { return scheduler_.SealedHashes(); }
  // The model, the limits and CachedBlocks: all of a registration that does not depend on the
  // driver.
  void Describe(v1::Registration& registration) const;
  // Events of the blocks that lie in storage only.
  std::vector<v1::NodeEvent> StoredOnlyEvents() const;
  // Events for a router that joins: that this node drains, if it does, and those of
  // StoredOnlyEvents.
  std::vector<v1::NodeEvent> JoinEvents() const;

  // ---- for the core
  // Begins a role. REQUIRES: idle().
  void BeginRole(const StepRules& rules);

  void OnRouterJoined(RouterKey router);
  void OnRouterLost(RouterKey router);
  // Commands about blocks and loans; those for legs have no effect. True: no node has the blocks of
  // the fetch that SendBlocks names, and fetched_prompts().Take returns the prompt that waited.
  bool OnCommand(RouterKey router, const v1::NodeCommand& command, absl::Time now);
  // Events of the legs' leases and exports have no effect. True: a fetch is over; as above.
  bool Handle(const transfer::LeaseInstalled& event);
  bool Handle(const transfer::LeaseFailed& event);
  void Handle(const transfer::LeaseDrained& event);
  void Handle(const transfer::ExportDone& event);
  void Handle(const transfer::ExportFailed& event, absl::Time now);
  void OnLending(const lending::LendingEvent& event, absl::Time now);
  // A command about blocks or loans whose load from storage has ended.
  void Resubmit(const StoredBlocks::Ready& ready, absl::Time now);
  // Both return commands whose load from storage has ended: the core takes them again.
  std::vector<StoredBlocks::Ready> OnStorage(const storage::StorageEvent& event, absl::Time now) {
    return stored_blocks_.Handle(event, now);
  }
  std::vector<StoredBlocks::Ready> OnTick(absl::Time now);
  // Tells the routers that this node drains, offers its prefix blocks to peers for `time_left`, and
  // recalls what is lent.
  void BeginDrain(absl::Time now, absl::Duration time_left);

  // Plans the next step, and starts its clock.
  absl::Span<const engine::SequenceSlice> PlanStep(absl::Time now);
  // Ends the planned step with its clock.
  const StepResult& FinishStep(const absl::StatusOr<std::vector<engine::SampledToken>>& result,
                               absl::Time now);

  // All of a load report but the legs' own leases and exports.
  v1::NodeLoad load() const;
  // Likewise of NodeCore::held.
  int64_t held() const;
  // Whether leases hold blocks, or sequences that are in no queue, the legs' own leases excepted.
  // Each has a deadline. Not: blocks that a hanging disk keeps in quarantine, which has none.
  bool awaits_blocks() const;
  // No sequence, lease, export, loan or quarantined block is left, the legs' own ones excepted.
  bool idle() const;

  SequenceScheduler& scheduler() { return scheduler_; }
  const SequenceScheduler& scheduler() const { return scheduler_; }
  NodeLedger& ledger() { return ledger_; }
  FetchedPrompts& fetched_prompts() { return fetched_prompts_; }
  StoredBlocks& stored_blocks() { return stored_blocks_; }
  Borrower& borrower() { return borrower_; }
  const Borrower& borrower() const { return borrower_; }
  const Lender& lender() const { return lender_; }
  const NodeLedger& ledger() const { return ledger_; }

 private:
  int64_t leases() const;
  int64_t exports() const;
  bool OnSendBlocks(RouterKey router, const v1::SendBlocks& command, absl::Time arrived,
                    absl::Time now);
  void OnLendBlocks(RouterKey router, const v1::LendBlocks& command, absl::Time now);

  SequenceScheduler scheduler_;
  NodeLedger ledger_;
  PrefixMigration prefix_migration_{scheduler_, ledger_};
  PrefixFetch prefix_fetch_{scheduler_, ledger_};
  FetchedPrompts fetched_prompts_{scheduler_, prefix_fetch_};
  StoredBlocks stored_blocks_;
  Borrower borrower_;
  Lender lender_;
};

}  // namespace tandem::node
