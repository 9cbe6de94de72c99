// One sequence on one node: the input that decides its tokens, its tokens so far, and the blocks
// that hold its KV. Thread safety: plain values. Owner: the SequenceScheduler, which alone changes
// them.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/engine/engine.h"
#include "common/engine/token_counts.h"
#include "common/guided/constraint.h"
#include "common/guided/constraint_cache.h"
#include "common/kv/block_hash.h"
#include "common/kv/block_owners.h"
#include "common/request/sampling_params.h"
#include "tandem/v1/fleet.pb.h"

namespace tandem::node {

// A sequence on this node. Ids rise with arrival: a lower id came first.
using SequenceId = StrongId<struct SequenceIdTag, uint64_t>;

// What a router's command says of a sequence.
struct SequenceInput {
  std::vector<TokenId> prompt;  // prompt, then tokens already delivered to the client
  request::SamplingParams sampling;
  // The constraint's state after the answer so far, if any; part of the answer may be deferred.
  std::optional<guided::Matcher> matcher;
  // Each step reads these: they lie side by side.
  std::optional<int32_t> prompt_logprobs;  // how many top ones to report of each prompt token
  int32_t delivered_tokens = 0;            // how many of `prompt`'s tail are generated tokens
  int32_t sequence_index = 0;
  // A step in which it generates shall take at most so long, prompts included.
  absl::Duration step_goal = absl::InfiniteDuration();
  // When its first token is due, counted from `arrived`; infinite = no time is set.
  absl::Duration first_token_within = absl::InfiniteDuration();
  std::vector<TokenId> eos_token_ids;
  request::StopParams stop;
  std::string cache_salt;
  kv::BlockOwner owner;           // the tenant that its blocks count for, if any
  std::string numerics_id;        // part of the blocks' hashes; empty = the engine's own
  std::string group;              // equal for the sequences of one request; empty = it is alone
  int32_t priority = 0;           // lower is computed earlier
  absl::Time arrived;             // at this node
  int64_t borrow_blocks_max = 0;  // beside the node's own; 0 = none
  int64_t arrived_us = 0;         // at its router, by that one's clock; 0 = unknown
  bool forks_follow = false;      // others will copy the prompt's end (sequence_fork.h)
  // Of a prompt that is computed for another node: its first units, which creditors are to keep,
  // and that node, which is asked to keep none of them.
  int32_t split_units = 0;
  std::string split_receiver;
};

// How old a sequence is among those of all nodes: the less, the older. The sequences of one request
// come at one time, and may run on several nodes: their nodes' ids decide then.
struct SequenceAge {
  int64_t arrived_us = 0;  // as SequenceInput has it
  NodeId node;
  friend bool operator<(const SequenceAge& a, const SequenceAge& b) {
    return std::tie(a.arrived_us, a.node) < std::tie(b.arrived_us, b.node);
  }
};

// Errors: kInvalidArgument names the field, its value and what the model `spec` allows. Takes a
// constraint on the answer from `constraints`, and defers its reading of the delivered tokens;
// null: sequences with a constraint are refused. kUnavailable when `constraints` does not have it.
absl::StatusOr<SequenceInput> ParseSequence(const v1::SequenceSpec& wire, int32_t sequence_index,
                                            const engine::EngineSpec& spec,
                                            guided::ConstraintCache* constraints);

// Of first_token_due_us, as a peer sent it: for what is not positive no time is set.
inline absl::Duration ParseFirstTokenDue(int64_t due_us) {
  return due_us > 0 ? absl::Microseconds(due_us) : absl::InfiniteDuration();
}

// Whether some token may come next: kInvalidArgument when the constraint and allowed_token_ids
// leave none, and as guided::Matcher::Allowed. REQUIRES: nothing is deferred.
absl::Status CheckNextToken(SequenceInput& input);

// Tokens the sequence can ever have: until max_tokens or the model's context.
int64_t MaxTokens(const SequenceInput& input, int32_t context_tokens);

v1::GeneratedToken ToWire(const engine::SampledToken& sampled, int32_t index);

// Where a sequence stands. Its blocks are held from Admit to Release, except while it waits after
// a preemption.
enum class SequencePhase {
  kHeld,     // blocks reserved, nothing to compute yet: its KV is on the way
  kWaiting,  // to be computed once a slot is free
  kRunning,  // in the batch
  kParked,   // nothing more to compute; blocks pinned for sending
};

// What a sequence's loans have cost it, and how much of its attention was computed here.
struct LentUse {
  // Loans that were used, and their units.
  struct Lent {
    int32_t loans = 0;
    int64_t units = 0;
  };
  // By creditor. Bound: the nodes of the fleet.
  std::map<std::string, Lent> creditors;
  int32_t units_max = 0;  // lent at a time
  int64_t steps = 0;      // that asked creditors
  // Tokens that its rows attended to, each row's counted: with creditors, and in all.
  int64_t tokens_lent = 0, tokens = 0;
  absl::Duration waited;  // for creditors, in those steps

  // The share of its attention that was computed on its own node; 1 before the first row.
  double locality() const {
    return tokens == 0 ? 1 : 1 - static_cast<double>(tokens_lent) / static_cast<double>(tokens);
  }
};

// A sequence that has lost loans, and computes the lost units again (sequence_rebuild.h). Meanwhile
// it stands before them: num_computed and num_sealed of the sequence, and remote.lent, end there.
struct Rebuild {
  int64_t end = 0;         // rows before this one are computed now: up to what it has kept
  int64_t held = 0;        // leading entries of `blocks` that are lent, or lie here
  int64_t kept_first = 0;  // ordinal of the first block that it has kept here
  // Loans of units after `end`, ascending. Bound: the loans of the sequence.
  std::vector<engine::LentUnits> later;
  int64_t num_computed = 0, num_sealed = 0;  // of the sequence, once it goes on
  bool computes = true;  // the lost rows; otherwise other nodes must have them (windowed layers)
};

// What each step reads comes first, so that it takes few lines of the processor's cache.
struct Sequence {
  SequenceId id;
  SequencePhase phase = SequencePhase::kHeld;
  bool generates = true;      // otherwise its prompt is computed for another node
  bool awaits_loans = false;  // takes part in no step until its loans were taken over
  // Takes part in no step until a creditor that was late has answered, or is lost.
  bool awaits_creditors = false;
  bool in_step = false;         // a slice of the running step
  bool released = false;        // erased when the running step is done
  bool gives_up_loans = false;  // when the running step ends: lost_loans, or all if there are none
  bool lacks_room = false;      // got no block or slot for its next row; until a row is planned
  std::vector<TokenId> tokens;  // prompt, then generated
  int64_t num_computed = 0;     // tokens whose KV lies in `blocks`
  int64_t num_sealed = 0;       // leading blocks that were offered to the prefix cache
  std::vector<BlockId> blocks;  // by ordinal; engine::kNoBlock for those of lent and lost units
  std::unique_ptr<Rebuild> rebuild;  // null: it has lost nothing
  int64_t prompt_tokens = 0;
  int64_t tokens_max = 0;          // that it may have
  int64_t forked_tokens = 0;       // of the prompt, copied from other sequences' blocks
  int64_t counted_prefill = 0;     // while it is in a queue: remaining(), unless that is 1 or 0
  engine::RemoteKv remote;         // what other nodes keep of it
  std::vector<LoanId> lost_loans;  // since the running step began. Bound: its loans
  LentUse lent_use;                // since it was admitted
  // Of `tokens`, for penalties, while it runs. Built when it is first needed after it was admitted
  // or preempted.
  engine::TokenCounts token_counts;
  std::vector<engine::SampledToken> step_scores;  // filled by the running step
  SequenceInput input;                            // `prompt` has moved into `tokens`
  int64_t cached_tokens = 0;  // of the prompt, found in the prefix cache on admission
  // Of cached_tokens: what was brought into the prefix cache, and this sequence is the first to
  // use.
  struct Brought {
    int64_t from_host_memory = 0, from_disk = 0, fetched = 0;
  };
  Brought brought_tokens;
  kv::BlockHash salt;
  std::vector<kv::BlockHash> hashes;  // of the full blocks of `tokens`, as far as needed
  // The window slots that it holds (sequence_window.h), and how many it has reserved.
  int64_t first_slot = 0, end_slot = 0, reserved_slots = 0;
  // The pool cannot hold its prompt: it takes blocks as it is computed, and lends units meanwhile.
  bool grows = false;
  bool outgrows = false;         // the pool cannot hold all tokens that it may have
  bool damaged = false;          // some of its blocks hold wrong KV: nothing of it is to be found
  bool yields_to_older = false;  // waits until an older sequence of another node has memory
  // It was preempted, or has lost units with a creditor, and its blocks are being read back from
  // storage: it takes none meanwhile.
  bool reading_back = false;
  // Steps without room for a block of a prompt, while it had rows to compute (prompt_chunk.h).
  int32_t steps_passed = 0;
  int32_t preempted_early = 0;  // times that it was, and one behind it was not (preemption.h)
  // The constraint has yet to say of the last output token whether it completes the answer. False
  // on a node that is to score the prompt of an answer that began elsewhere: the scores come first.
  bool verdict_due = false;
  // Prompt tokens 1 to num_scored have log-probabilities; their rows need not be computed again.
  int64_t num_scored = 0;
  absl::Time rank;               // does not change
  uint64_t constraint_work = 0;  // of its constraint's last turn

  // Sequences are served in this order: by rank (common/request/queue_order.h), then by arrival.
  using Order = std::pair<absl::Time, SequenceId>;
  Order order() const { return {rank, id}; }
  // Prompt tokens still to be scored.
  int64_t unscored() const {
    if (!input.prompt_logprobs.has_value()) return 0;
    return prompt_tokens - input.delivered_tokens - 1 - num_scored;
  }
  // Whether it takes no part in steps until its constraint has read and computed (ConstraintTurns).
  bool awaits_constraint() const { return input.matcher.has_value() && !input.matcher->ready(); }
  // Whether it takes no part in the next step.
  bool skips_step() const {
    return awaits_constraint() || awaits_loans || awaits_creditors ||
           (rebuild != nullptr && (reading_back || !rebuild->computes));
  }
  // Of one that has generated a token: whether it gets none because it waits for its turn or for
  // memory, or computes again what it gave up.
  bool makes_no_token() const {
    return phase == SequencePhase::kWaiting || remaining() > 1 || rebuild != nullptr || lacks_room;
  }
  // Whether it has lent units, or has yet to compute some that it has lost.
  bool borrows() const { return !remote.lent.empty() || rebuild != nullptr; }
  int32_t lent_units() const { return remote.lent.empty() ? 0 : remote.lent.back().units.end; }
  // Rows that are to be computed now.
  int64_t remaining() const {
    return (rebuild != nullptr ? rebuild->end : static_cast<int64_t>(tokens.size())) - num_computed;
  }
  // Whether these are a prompt's, or lost ones: they come in chunks, and the last may sample
  // nothing.
  bool takes_chunks() const { return remaining() > (rebuild != nullptr ? 0 : 1); }
  // Where the prompt's KV came from, when `received` of its tokens came from another node.
  v1::TokensBySource PromptSources(int64_t received = 0) const;
};

}  // namespace tandem::node
