// Decides which rows the next engine step computes and which sequence holds which KV blocks, for
// both kinds of node. It owns the block pool and every sequence on the node, and does no I/O.
//
//   Admit ─▶ Held ─Schedule──────▶ Waiting ─slot free─▶ Running ─Park─▶ Parked ─Release─▶ gone
//              └────MarkReceived──▶   ▲                    │
//                                     └──── preempted ─────┘     Release works in every phase.
//
// A step consists of one row for each running sequence that generates or is a fork
// (sequence_fork.h), then chunks of prompts, up to max_batch_tokens rows. With an SLO for the time
// between tokens, fewer prompt rows join a step that has generated ones: less than a block, or
// none, while every prompt has time left until its first token is due (prompt_chunk.h). A
// sequence's rank decides its place (common/request/queue_order.h); of equal ranks, a lower
// SequenceId came first. So equal histories in equal times give equal plans.
//
// When a generating sequence needs a block and none is available, the scheduler preempts a sequence
// behind it in the order: the last one, or one that costs much less (preemption.h). That sequence
// gives up all of its blocks and waits. So do the other sequences of its request that are behind
// the needy one, since most of its blocks are theirs as well. Then it takes from the prefix cache
// what is still there or was read back meanwhile (stored_blocks.h), and the rest is computed again
// from its tokens; its stream does not change. Where units can be lent instead (borrower.h), it
// waits for that. The first sequence is never preempted. Memory keeps it from going on only while
// no sequence behind it has blocks, and what is in no queue (held and parked sequences, leases,
// fetches, offers of a drain, loads from storage) keeps the blocks that it lacks until a deadline
// of its own. While a sequence waits or stalls because blocks are missing, no new sequence is
// admitted.
//
// Thread safety: none; one thread, the engine thread. Owner: NodeResources.
// Invariants: every block reference of the pool belongs to exactly one sequence's table, to a
// planned slice that copies the block, or to the node's PrefixMigration, PrefixFetch or
// StoredBlocks; blocks are written only by the sequence that allocated them, before they are
// sealed; a sequence that is part of the running step keeps its tokens and blocks until FinishStep.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/cost/step_cost.h"
#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "common/node/constraint_turns.h"
#include "common/node/sequence.h"
#include "common/node/sequence_rebuild.h"
#include "common/node/step_meter.h"
#include "common/node/step_outcome.h"
#include "common/request/queue_order.h"
#include "common/storage/block_storage.h"

namespace tandem::node {

class StoredPrices;  // preemption.h

struct SchedulerOptions {
  engine::EngineSpec spec;
  NodeId self;             // decides between sequences that are equally old (SequenceAge)
  kv::BlockKey block_key;  // that blocks are named with; the fleet's
  int64_t num_blocks = 0;
  // The arena's; null exactly if the spec's layout has no windowed layers.
  std::shared_ptr<kv::SlotTable> slots;
  int64_t max_batch_tokens = 512;  // rows of one step
  int32_t max_sequences = 64;      // in the running batch; at most max_batch_tokens are used
  int64_t max_waiting = 1024;      // sequences admitted beyond max_sequences
  // Sequences may have their oldest units kept by other nodes (borrower.h).
  bool borrows = false;
  // Blocks that this node keeps for other nodes' sequences at most (lender.h).
  int64_t lend_blocks_max = 0;
  // Shared with the runtime's ConstraintGate, which fills it; null = constraints are refused.
  std::shared_ptr<guided::ConstraintCache> constraints;
  // What the engine's steps cost, as far as it is known before the first one.
  cost::StepCost step_cost;
  // While sequences generate here, a step takes only as many rows of prompts as keep its predicted
  // time within this and their step goals; at least one block's once a prompt may wait no longer
  // (prompt_chunk.h). Zero, and no goal: as many as max_batch_tokens allows.
  absl::Duration itl_slo;
  request::QueueOrder queue_order = request::QueueOrder::kPriority;
  // Sequences join only when the last batch has ended as a whole: for comparison.
  bool static_batches = false;
  // What the node's storage holds at the start, for the core's StoredBlocks; null: no storage.
  std::shared_ptr<const storage::StorageContents> stored_blocks;
};

// What the node's role asks of its steps. Unlike SchedulerOptions, a core of another role changes
// it.
struct StepRules {
  // Sequences generate here, so itl_slo and static_batches hold. Otherwise no prompt's row delays a
  // token, and a prompt that was computed has left the batch.
  bool generates = true;
  // After a failed step each of its sequences is tried alone, so that only the faulty one fails.
  // Not for nodes that push blocks while a step runs: they would push them twice.
  bool retry_alone = false;
};

// A slice of the running step.
struct PlannedSlice {
  SequenceId id;
  Sequence* sequence = nullptr;         // it stays until FinishStep
  int64_t first_row = 0, num_rows = 0;  // tokens [first_row, first_row + num_rows)
  bool sample = false;
  // The rows of the same block before first_row are copied from this block, which is pinned until
  // FinishStep.
  std::optional<BlockId> forked_from;
};

struct StepResult {
  absl::Status status;  // why nothing was computed, or OK
  // In slice order; only sequences that were neither parked nor released during the step.
  std::vector<StepOutcome> outcomes;
};

class SequenceScheduler {
 public:
  explicit SequenceScheduler(const SchedulerOptions& options);

  // A role begins. REQUIRES: no sequence is here.
  void set_rules(const StepRules& rules);

  // Takes on a sequence: matches its prefix in the cache and reserves blocks for its whole prompt,
  // and one more block when it `generates`. At least the prompt's last token is left to compute or
  // receive.
  // Errors: kInvalidArgument when the pool could never hold it; kResourceExhausted when there are
  // no blocks or slots now (nothing is held then).
  absl::StatusOr<SequenceId> Admit(SequenceInput input, bool generates);
  // Whether Admit would take it on if there is room for its prompt. Call it before anything takes
  // memory for a prompt that is admitted later. Errors: as Admit.
  absl::Status CanAdmit(const SequenceInput& input, bool generates) const;

  // REQUIRES for all below: `id` was admitted and not released.
  const Sequence& Get(SequenceId id) const;
  // Null when it is not here (any more).
  const Sequence* Find(SequenceId id) const {
    const auto it = sequences_.find(id);
    return it == sequences_.end() || it->second->released ? nullptr : it->second.get();
  }
  // Moves it from Held to Waiting. REQUIRES: held.
  void Schedule(SequenceId id);
  // The KV of its first `tokens` tokens has arrived complete and verified; moves it to Waiting,
  // where the rest is computed. REQUIRES: held; cached_tokens <= tokens <= prompt_tokens.
  void MarkReceived(SequenceId id, int64_t tokens);
  // The prompt's KV will arrive from another node, but for what the cache holds: what is needed of
  // windowed layers lands in slots that this takes. False when there are too few: the sequence can
  // then only be released. REQUIRES: held.
  bool AwaitPrompt(SequenceId id);
  // Gives back its blocks and takes some for the prompt's end and one more, at most `blocks_max`:
  // the units before them will lie with creditors. Returns how many units that are; 0: the prompt
  // cannot be cut like that, and it may hold no blocks any more. REQUIRES: held.
  int32_t HoldEndOnly(SequenceId id, int64_t blocks_max);
  // As Schedule, for a sequence that cannot continue from what has arrived, because the windowed
  // layers' part is missing: it takes its blocks again, from the cache and free ones. REQUIRES:
  // held; nothing can arrive any more.
  void ScheduleAfresh(SequenceId id);
  // Returns the sequence. REQUIRES: all of its tokens are computed.
  const Sequence& AppendToken(SequenceId id, TokenId token);
  // The same for the token that a step sampled, without looking for the sequence. REQUIRES: it was
  // not released since.
  const Sequence& AppendSampled(const StepOutcome& outcome);
  // Advances the sequence's constraint by an output token (ConstraintTurns::Advance); kReady
  // without a constraint. Call it for each output token.
  absl::StatusOr<ConstraintTurns::Progress> AdvanceConstraint(SequenceId id, TokenId token);
  // Lets the constraints go on that had more to do than there was time for, and returns what became
  // of those of whom the core does not know: failed ones, and those with a verdict due. Call it
  // before PlanStep.
  std::vector<ConstraintTurns::Settled> FollowConstraints();
  // Whether a sequence waits for FollowConstraints.
  bool following_constraints() const { return constraint_turns_.any(); }
  const ConstraintTurns& constraint_turns() const { return constraint_turns_; }
  // Whether its last row is all that the next step would compute: the rest can be copied.
  bool CanFork(SequenceId id) const;
  // Stops computing it, keeps its blocks.
  void Park(SequenceId id);
  // Gives its blocks back; full computed ones stay as prefix cache.
  void Release(SequenceId id);
  // As Release, but blocks [first_ordinal, first_ordinal + count) may still be written by a peer:
  // they are quarantined and returned. REQUIRES: held.
  std::vector<BlockId> ReleaseQuarantining(SequenceId id, int64_t first_ordinal, int64_t count);
  void EndQuarantine(absl::Span<const BlockId> blocks);

  // ---- blocks of sequences that lie in storage, for StoredBlocks
  // The preempted sequences that take blocks next, in order, at most `most` of them. None that is
  // held back.
  std::vector<SequenceId> NextToResume(size_t most) const;
  // The names of the blocks from which a preempted sequence can go on. REQUIRES: `id` is here.
  std::vector<kv::BlockHash> HashesToResume(SequenceId id);
  // Whether its blocks are being read: it takes none until they are here, and one with a rebuild
  // takes part in no step. No effect on a sequence that has left.
  void SetReadingBack(SequenceId id, bool reading_back);
  // What reading a preempted sequence's blocks would cost. `prices` outlives the last PlanStep.
  void set_stored_prices(const StoredPrices* prices) { stored_prices_ = prices; }

  // ---- lending, for the Borrower
  // A creditor has verified copies of these units: gives their blocks back. REQUIRES: `id` is not
  // in the running step; the units are the first of LendableUnits (lent_units.h).
  void Lend(SequenceId id, const engine::LentUnits& lent);
  // Another creditor has verified copies of what `id` has lent under the loan `from`: `to` takes
  // its place. REQUIRES: `id` is not in the running step.
  void MoveLoan(SequenceId id, LoanId from, LoanId to);
  // The units of the last loan of `id` are back in `blocks`, whose references it takes over.
  // REQUIRES: `id` is not in the running step.
  void TakeHome(SequenceId id, absl::Span<const BlockId> blocks);
  // The units before those that `id` received lie with creditors, under these loans; it sits out
  // until EndAwaitLoans. REQUIRES: held; HoldEndOnly; the units are those that it named.
  void AwaitLoans(SequenceId id, std::vector<engine::LentUnits> lent);
  void EndAwaitLoans(SequenceId id) { At(id).awaits_loans = false; }
  // A creditor that was late has answered. `id` may have ended.
  void EndAwaitCreditors(SequenceId id);
  // A loan of the sequence is used from now on, for LentUse.
  void CountLoan(SequenceId id, const std::string& creditor, int32_t units);
  // What `id` has lent under `loan` is lost: the loan ends, and its units are computed again. The
  // sequence keeps its blocks and other loans and then goes on where it was (sequence_rebuild.h).
  // Where that cannot be, as GiveUpLoans. No effect if it has lent nothing under the loan.
  void LoseLoan(SequenceId id, LoanId loan);
  // Whether RegainUnits of these may follow: they were lost and not computed since.
  bool AwaitsUnits(SequenceId id, const engine::UnitSpan& units) const {
    return node::AwaitsUnits(Get(id), units, options_.spec);
  }
  // A creditor holds units that `id` had lost (sequence_rebuild.h). REQUIRES: AwaitsUnits; they
  // follow what it has lent; `id` is not in the running step.
  void RegainUnits(SequenceId id, const engine::LentUnits& lent);
  // Computes the sequence again, because a creditor lost or recalled what it had lent. All its
  // loans end. A prompt that is computed for another node is parked instead: what was sent of it
  // may be wrong.
  void GiveUpLoans(SequenceId id);
  // Prompts that were parked like that since the last call.
  std::vector<SequenceId> TakeSplitsLost() { return std::exchange(splits_lost_, {}); }
  // For the Lender: of the running sequences that are longer than half of the pool, may outgrow it,
  // and are younger than `age`, of another node's sequence, the youngest gives up its blocks and
  // loans, and waits until EndHoldBack; it is then computed again. False when there is none, or it
  // is unknown which came first.
  bool HoldBack(const SequenceAge& age);
  // Those that are no younger wait no longer.
  void EndHoldBack(const SequenceAge& age);
  // Loans that ended since the last call, because their sequences gave up all blocks.
  std::vector<LoanId> TakeEndedLoans() { return std::exchange(ended_loans_, {}); }
  absl::Span<const LoanId> ended_loans() const { return ended_loans_; }  // not yet taken
  // While set, sequences that lack a block wait instead of preempting others.
  void set_loan_expected(bool expected) { loan_expected_ = expected; }
  using Order = Sequence::Order;
  // Each step walks through all of it: the entries of a B-tree lie side by side. A change of the
  // queue moves them, so its iterators do not outlive one.
  using Queue = absl::btree_map<Order, Sequence*>;
  // Running sequences, in order.
  const Queue& running() const { return running_; }
  bool short_of_blocks() const { return short_of_blocks_; }

  // The next step; empty when nothing can be computed. Valid until FinishStep, which must follow.
  // `now`: by the clock of SequenceInput::arrived; without it no prompt waits.
  absl::Span<const engine::SequenceSlice> PlanStep(absl::Time now = absl::InfiniteFuture());
  absl::Span<const PlannedSlice> planned() const { return planned_; }
  // On an engine's error, or a wrong number of tokens (kInternal), nothing was computed and nothing
  // is sealed; after kDataLoss no block of its sequences is found as a prefix any more. With
  // retry_alone the failure of a step of several sequences has no outcomes: they are tried again.
  // Valid until the next step is finished.
  const StepResult& FinishStep(const absl::StatusOr<std::vector<engine::SampledToken>>& result);

  // How long the planned step waited for creditors. Call it before FinishStep; otherwise it did
  // not.
  void OnCreditorsAwaited(absl::Duration waited) { creditors_awaited_ = waited; }

  // What the planned step computes, and the clock that its caller starts and stops around it.
  const cost::StepShape& planned_shape() const { return shape_; }
  StepMeter& meter() { return meter_; }
  const StepMeter& meter() const { return meter_; }

  // The names of the full blocks of a prompt.
  std::vector<kv::BlockHash> HashesOf(const SequenceInput& input);

  // For PrefixMigration, PrefixFetch and StoredBlocks, whose blocks belong to no sequence.
  kv::BlockPool& pool() { return pool_; }
  const kv::BlockPool& pool() const { return pool_; }
  kv::BlockPool::Counts block_counts() const { return pool_.counts(); }
  std::vector<kv::BlockOwners::Counts> owner_counts() const { return pool_.owner_counts(); }
  // The most blocks that a sequence which joins now can have.
  int64_t RoomForOne() const;
  kv::BlockEvents DrainBlockEvents() { return pool_.DrainEvents(); }
  bool has_block_events() const { return pool_.has_events(); }
  std::vector<kv::BlockHash> SealedHashes() const { return pool_.SealedHashes(); }
  int64_t size() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t running_count() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting_count() const { return static_cast<int64_t>(waiting_.size()); }
  // Rows of prompts (or recomputations) that are to be computed here.
  int64_t prefill_tokens_waiting() const { return prefill_tokens_waiting_; }
  int64_t preemption_count() const { return preemption_count_; }
  // Times that a sequence, or its lost units, was computed again because what it had lent was lost
  // or recalled.
  int64_t recomputed_for_loans() const { return recomputed_for_loans_; }
  // Times that HoldBack found one.
  int64_t held_back_count() const { return held_back_count_; }
  // Times that a sequence's rows failed because a creditor was late, and that it waits for it.
  int64_t postponed() const { return postponed_; }
  // For tests: tokens that were counted for penalties. Each token of a sequence counts once, and
  // again after it was preempted.
  int64_t tokens_counted() const { return tokens_counted_; }
  // Of recomputed_for_loans(): sequences that kept the rest, those of them that then went on where
  // they were, the rows that they computed for it, and the times that they waited for storage.
  struct Rebuilds {
    int64_t begun = 0, done = 0, rows = 0, reads = 0;
  };
  const Rebuilds& rebuilds() const { return rebuilds_; }
  const SchedulerOptions& options() const { return options_; }
  const engine::EngineSpec& spec() const { return options_.spec; }
  guided::ConstraintCache* constraints() const { return options_.constraints.get(); }

 private:
  // Tokens for which a sequence gets memory before it needs it.
  static constexpr size_t kRoomAhead = 512;

  kv::BlockHash SaltOf(const SequenceInput& input);
  absl::Time RankOf(const Sequence& sequence) const;
  Sequence& At(SequenceId id);
  const Sequence& Append(Sequence& sequence, TokenId token);
  void MakeRoom(Sequence& sequence);
  // The leading blocks of its tokens that can be taken from the cache.
  int64_t MatchableBlocks(const Sequence& sequence) const;
  bool AcquireBlocks(Sequence& sequence, int64_t count);
  // The same for a preempted sequence. It is called before each step: it does not look again while
  // nothing has changed that could help.
  bool AcquireToResume(Sequence& sequence, int64_t count);
  void ReturnBlocks(Sequence& sequence);
  void ExtendHashes(Sequence& sequence);
  void SealComputed(Sequence& sequence);
  void LeaveQueues(Sequence& sequence);
  // Counts a sequence of a queue in prefill_tokens_waiting_. Call it whenever the sequence enters a
  // queue, or tokens of it were computed, or have to be computed again.
  void CountPrefill(Sequence& sequence);
  void Erase(Sequence& sequence);
  void FillRunning();
  bool Grow(Sequence& sequence);
  void PlanRows();
  // Plans the one row of a sequence that generates or is a fork; false when it has none.
  bool PlanRow(Sequence& sequence);
  // Takes the blocks of a sequence behind `needy` in the order (preemption.h), and of its group.
  // False when none has blocks.
  bool PreemptFor(const Sequence& needy);
  // The sequences behind `needy` that have blocks, in order. Valid until the next call.
  absl::Span<Sequence* const> Behind(const Sequence& needy);
  void Preempt(Sequence& sequence);
  // As Preempt, for a sequence that lost lent KV.
  void ComputeAgain(Sequence& sequence);
  // Computes the units of the loans again, or the sequence. REQUIRES: not in the running step.
  void ComputeLost(Sequence& sequence, absl::Span<const LoanId> lost);
  // After a step in which the sequence lost loans, or is to give them up.
  void ComputeLostInStep(Sequence& sequence);
  // No sequence can go on: the last one that lacks blocks for lost units gives up some that it has
  // kept. False when there is none.
  bool MakeRoomForLost();
  // The blocks of all tokens that the sequence may have.
  int64_t BlocksMax(const SequenceInput& input, bool generates) const;
  // Blocks that a sequence may borrow here.
  int64_t Borrowable(const SequenceInput& input) const {
    const bool may = options_.borrows && options_.spec.unit_tokens > 0;
    return may && !input.prompt_logprobs.has_value() ? input.borrow_blocks_max : 0;
  }
  // Plans `num_rows` rows after those that are computed and those that are copied.
  void AddSlice(Sequence& sequence, int64_t num_rows,
                std::optional<kv::PartIndex::Found> copied = {});
  // How many of its next rows can be copied (MissingPart).
  int64_t CopyableRows(const Sequence& sequence) const;
  // The block that all rows but the last can be copied from, pinned.
  std::optional<kv::PartIndex::Found> PinForkOf(Sequence& sequence);
  // Plans the next rows of a prompt, at most `rows_max` of them beside those that can be copied.
  // Returns how many are computed.
  int64_t AddChunk(Sequence& sequence, int64_t rows_max);
  // Adds the slice of a step that ended well to what the sequence's loans cost it.
  void CountLentUse(Sequence& sequence, const PlannedSlice& slice, absl::Duration waited) const;
  // The first `num_computed` tokens now have KV.
  void TakeComputed(Sequence& sequence, int64_t num_computed);
  // How many rows, at most `rows_max`, of this prompt the planned step takes in.
  int64_t ChunkOf(Sequence& sequence, int64_t rows_max);
  // Whether the planned step may take less than a block of prompts: each of them may wait.
  bool PromptsWait();
  // Plans the next sequence of a failed step alone; false when there is none (any more).
  bool PlanSuspect();
  // Whether the failed step's sequences are tried again, alone.
  bool OnStepFailed(const absl::Status& status);

  const SchedulerOptions options_;
  StepRules rules_;
  kv::BlockHasher hasher_;
  kv::BlockPool pool_;
  // Bound: --max-sequences and 1,024 waiting.
  absl::flat_hash_map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  // Bound: the sequences.
  Queue waiting_, running_;
  // Bound: the sequences.
  std::vector<Sequence*> behind_;  // those that PreemptFor weighs
  const StoredPrices* stored_prices_ = nullptr;
  // Bound: --max-batch-tokens.
  std::vector<engine::SequenceSlice> slices_;
  std::vector<PlannedSlice> planned_;
  StepResult finished_;  // of the last step
  ConstraintTurns constraint_turns_;
  cost::StepShape shape_;             // of planned_
  absl::Duration step_goal_;          // the shortest of those that generate in it
  absl::Time now_;                    // when it was planned
  std::optional<bool> prompts_wait_;  // as PromptsWait found, in this step
  absl::Duration creditors_awaited_;  // likewise
  StepMeter meter_;
  // Bound: the slices of the failed step.
  std::vector<SequenceId> suspects_;  // of a failed step, to be tried alone, last first
  uint64_t next_id_ = 1;
  // Bound: the loans of the sequences; the Borrower takes them after each step.
  std::vector<LoanId> ended_loans_;
  // Bound: the sequences; the core takes them before each step.
  std::vector<SequenceId> splits_lost_;
  // The preempted sequence for which there were too few blocks.
  struct Shortage {
    SequenceId id;
    int64_t count = 0;                  // blocks that it needs
    uint64_t releases = 0;              // of the pool, when it looked
    std::optional<kv::BlockHash> next;  // of its blocks, the first that was not found
  };
  std::optional<Shortage> shortage_;
  bool loan_expected_ = false;
  bool short_of_blocks_ = false;        // a sequence waits or stalls because blocks are missing
  int64_t prefill_tokens_waiting_ = 0;  // sum of counted_prefill over both queues
  bool room_made_ = false;              // for tokens of a sequence, since the last plan
  int64_t preemption_count_ = 0;
  int64_t tokens_counted_ = 0;
  int64_t recomputed_for_loans_ = 0, held_back_count_ = 0, postponed_ = 0;
  Rebuilds rebuilds_;
};

}  // namespace tandem::node
