// Which rows the next engine step computes, and who holds which KV blocks: the one scheduler of
// both kinds of node. Owns the block pool and every sequence on the node. Sans-I/O.
//
//   Admit ─▶ Held ─Schedule─▶ Waiting ─slot free─▶ Running ─Park─▶ Parked ─Release─▶ gone
//              └─MarkReceived─▶│  ▲                   │
//                              │  └──── preempted ────┘        Release works in every phase.
//
// A step holds first one row for each running sequence that generates, then chunks of prompts, up
// to max_batch_tokens rows. Priority and arrival decide everything (of equal priority, a lower
// SequenceId came first), so equal histories give equal plans.
//
// When a generating sequence needs a block and none is available, the last sequence behind it gives
// up all of its blocks and waits to be computed again from its tokens (preemption by recompute: the
// stream does not change). The first is never preempted, so there is progress. While a sequence
// waits or stands still for want of blocks nobody new is admitted.
//
// Thread safety: none; the engine thread owns it.
// Invariants: every block reference of the pool belongs to exactly one sequence's table, or to the
// node's PrefixMigration; blocks are written only by the sequence that allocated them, before they
// are sealed; a sequence that is part of the running step keeps its tokens and blocks until
// FinishStep.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "common/node/sequence.h"

namespace tandem::node {

struct SchedulerOptions {
  engine::EngineSpec spec;
  int64_t num_blocks = 0;
  int64_t max_batch_tokens = 512;  // rows of one step
  int32_t max_sequences = 64;      // in the running batch; at most max_batch_tokens are used
  int64_t max_waiting = 1024;      // admitted beyond that
  // Of the node's vocabulary, shared with the threads that parse commands; null = sequences with a
  // constraint are refused.
  std::shared_ptr<guided::ConstraintCache> constraints;
  // After a failed step each of its sequences is tried alone, so that only the one at fault fails.
  // Not for nodes that send rows away while a step runs: they would send them twice.
  bool retry_alone = false;
};

// A slice of the running step.
struct PlannedSlice {
  SequenceId id;
  int64_t first_row = 0, num_rows = 0;  // tokens [first_row, first_row + num_rows)
  bool sample = false;
};

// What a finished step did to one sequence that is still wanted.
struct StepOutcome {
  SequenceId id;
  // kDataLoss: a block of this sequence is damaged, and neither it nor what was computed from it is
  // found as a prefix any more. Otherwise as the step's.
  absl::Status status;
  bool sampled = false;
  engine::SampledToken token;  // if sampled; not yet appended
  // Scores of prompt tokens first_scored, first_scored + 1, ...; each token's once.
  std::vector<engine::SampledToken> prompt_scores;
  int64_t first_scored = 0;
};

struct StepResult {
  absl::Status status;  // why nothing was computed, or OK
  // In slice order; only sequences that were neither parked nor released during the step.
  std::vector<StepOutcome> outcomes;
};

class SequenceScheduler {
 public:
  explicit SequenceScheduler(const SchedulerOptions& options);

  // Takes a sequence on: matches its prefix and reserves blocks for its whole prompt, and one more
  // to grow into when `generates`. At least the prompt's last token is left to compute or receive.
  // Errors: kInvalidArgument when the pool could never hold it; kResourceExhausted when there are
  // no blocks or slots now (nothing is held then).
  absl::StatusOr<SequenceId> Admit(SequenceInput input, bool generates);

  // REQUIRES for all below: `id` was admitted and not released.
  const Sequence& Get(SequenceId id) const;
  // REQUIRES: held. Lets it be computed.
  void Schedule(SequenceId id);
  // The KV of its first `tokens` tokens has arrived whole and verified; lets the rest be computed.
  // REQUIRES: held; from what is cached to the prompt's length.
  void MarkReceived(SequenceId id, int64_t tokens);
  // REQUIRES: all of its tokens are computed.
  void AppendToken(SequenceId id, TokenId token);
  // Whether `token` makes an answer whole that has a constraint; false without one. Call for each
  // output token. kInvalidArgument when the constraint forbids it; as CheckNextToken when none can
  // follow.
  absl::StatusOr<bool> AdvanceConstraint(SequenceId id, TokenId token);
  // Stops computing it, keeps its blocks.
  void Park(SequenceId id);
  // Gives its blocks back; full computed ones stay as prefix cache.
  void Release(SequenceId id);
  // As Release, but blocks [first_ordinal, first_ordinal + count) may still be written by a peer:
  // they are quarantined and returned. REQUIRES: held.
  std::vector<BlockId> ReleaseQuarantining(SequenceId id, int64_t first_ordinal, int64_t count);
  void EndQuarantine(absl::Span<const BlockId> blocks);

  // The next step; empty when nothing can be computed. Valid until FinishStep, which must follow.
  absl::Span<const engine::SequenceSlice> PlanStep();
  absl::Span<const PlannedSlice> planned() const { return planned_; }
  // On an engine's error, or a wrong number of tokens (kInternal), nothing was computed and nothing
  // is sealed; after kDataLoss no block of its sequences is found as a prefix any more. With
  // retry_alone the failure of a step of several sequences has no outcomes: they are tried again.
  StepResult FinishStep(const absl::StatusOr<std::vector<engine::SampledToken>>& result);

  // For blocks without a sequence: PrefixMigration's.
  kv::BlockPool& pool() { return pool_; }
  kv::BlockPool::Counts block_counts() const { return pool_.counts(); }
  kv::BlockEvents DrainBlockEvents() { return pool_.DrainEvents(); }
  std::vector<kv::BlockHash> SealedHashes() const { return pool_.SealedHashes(); }
  int64_t size() const { return static_cast<int64_t>(sequences_.size()); }
  int64_t running_count() const { return static_cast<int64_t>(running_.size()); }
  int64_t waiting_count() const { return static_cast<int64_t>(waiting_.size()); }
  // Rows of prompts (or recomputations) that are to be computed here.
  int64_t prefill_tokens_waiting() const;
  int64_t preemption_count() const { return preemption_count_; }
  const engine::EngineSpec& spec() const { return options_.spec; }
  guided::ConstraintCache* constraints() const { return options_.constraints.get(); }

 private:
  using Order = std::pair<int32_t, SequenceId>;  // Sequence::order
  using Queue = std::map<Order, Sequence*>;

  Sequence& At(SequenceId id);
  bool AcquireBlocks(Sequence& sequence, int64_t count);
  void ReturnBlocks(Sequence& sequence);
  void ExtendHashes(Sequence& sequence);
  void SealComputed(Sequence& sequence);
  void LeaveQueues(Sequence& sequence);
  void Erase(Sequence& sequence);
  void FillRunning();
  bool Grow(Sequence& sequence);
  bool PreemptLast(const Order& behind);
  void Preempt(Sequence& sequence);
  static void TakeScores(Sequence& sequence, int64_t first_row, StepOutcome& outcome);
  void AddSlice(Sequence& sequence, int64_t num_rows);
  // Plans the next sequence of a failed step alone; false when there is none (any more).
  bool PlanSuspect();
  // Whether its sequences are tried again, alone.
  bool OnStepFailed(const absl::Status& status);
  void TakeToken(Sequence& sequence, const engine::SampledToken& token, StepOutcome& outcome);
  void ForgetFrom(const Sequence& sequence, BlockId damaged);

  const SchedulerOptions options_;
  kv::BlockPool pool_;
  // Bound: --max-sequences and 1,024 waiting.
  std::map<SequenceId, std::unique_ptr<Sequence>> sequences_;
  // Bound: the sequences.
  Queue waiting_, running_;
  // Bound: --max-batch-tokens.
  std::vector<engine::SequenceSlice> slices_;
  std::vector<PlannedSlice> planned_;
  // Bound: the slices of the failed step.
  std::vector<SequenceId> suspects_;  // of a failed step, to be tried alone, last first
  uint64_t next_id_ = 1;
  bool starved_ = false;  // a sequence waits or stands still for want of blocks
  int64_t preemption_count_ = 0;
};

}  // namespace tandem::node
