#include "common/node/sequence_scheduler.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/mutation.h"
#include "common/base/status_macros.h"
#include "common/node/lent_units.h"
#include "common/node/sequence_fork.h"
#include "common/node/sequence_window.h"

namespace tandem::node {
namespace {

SchedulerOptions Clamped(SchedulerOptions options) {
  TANDEM_CHECK(options.max_batch_tokens > 0 && options.max_sequences > 0 && options.num_blocks > 0,
               "max_batch_tokens ", options.max_batch_tokens, " max_sequences ",
               options.max_sequences, " num_blocks ", options.num_blocks);
  TANDEM_CHECK((options.slots != nullptr) == options.spec.layout.windowed(),
               "layers have windows, the arena no slots for them, or the other way round");
  // Every running sequence gets a row of every step.
  options.max_sequences =
      static_cast<int32_t>(std::min<int64_t>(options.max_sequences, options.max_batch_tokens));
  return options;
}

// Of cached blocks that a sequence has been given: tokens of those that it is the first to use.
Sequence::Brought TakeBrought(absl::Span<const BlockId> cached, int64_t block_tokens,
                              kv::BlockPool& pool) {
  Sequence::Brought brought;
  for (const BlockId block : cached) {
    switch (pool.TakeOrigin(block)) {
      case kv::BlockOrigin::kHere:
        break;
      case kv::BlockOrigin::kHostMemory:
        brought.from_host_memory += block_tokens;
        break;
      case kv::BlockOrigin::kDisk:
        brought.from_disk += block_tokens;
        break;
      case kv::BlockOrigin::kPeer:
        brought.fetched += block_tokens;
    }
  }
  return brought;
}

}  // namespace

SequenceScheduler::SequenceScheduler(const SchedulerOptions& options)
    : options_(Clamped(options)),
      hasher_(options.block_key),
      pool_(options_.num_blocks, options_.slots, options_.spec.layout.window_blocks()),
      meter_(options.step_cost) {}

void SequenceScheduler::set_rules(const StepRules& rules) {
  TANDEM_CHECK(sequences_.empty(), "a role begins while ", sequences_.size(),
               " sequences are here");
  rules_ = rules;
  loan_expected_ = false;
}

Sequence& SequenceScheduler::At(SequenceId id) {
  const auto it = sequences_.find(id);
  TANDEM_CHECK(it != sequences_.end() && !it->second->released, "sequence ", id.value(),
               " is not here");
  return *it->second;
}

const Sequence& SequenceScheduler::Get(SequenceId id) const {
  return const_cast<SequenceScheduler*>(this)->At(id);
}

kv::BlockHash SequenceScheduler::SaltOf(const SequenceInput& input) {
  return hasher_.Salt(options_.spec.model_fingerprint,
                      input.numerics_id.empty() ? options_.spec.numerics_id : input.numerics_id,
                      TANDEM_MUTATED(kSaltIgnored) ? std::string() : input.cache_salt);
}

std::vector<kv::BlockHash> SequenceScheduler::HashesOf(const SequenceInput& input) {
  return hasher_.Blocks(SaltOf(input), input.prompt, options_.spec.layout.block_tokens);
}

// ---- admission and release

int64_t SequenceScheduler::BlocksMax(const SequenceInput& input, bool generates) const {
  const kv::BlockLayout& layout = options_.spec.layout;
  // The last token's own KV is never needed.
  return layout.BlocksFor(generates ? MaxTokens(input, options_.spec.context_tokens) - 1
                                    : static_cast<int64_t>(input.prompt.size()));
}

absl::Status SequenceScheduler::CanAdmit(const SequenceInput& input, bool generates) const {
  const int64_t blocks_max = BlocksMax(input, generates);
  const int64_t borrowable = Borrowable(input);
  if (blocks_max > options_.num_blocks + borrowable) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence of ", input.prompt.size(), " prompt tokens and at most ", input.stop.max_tokens,
        " generated ones needs ", blocks_max, " KV blocks, this node has ", options_.num_blocks,
        borrowable > 0 ? absl::StrCat(" and may borrow ", borrowable) : ""));
  }
  if (size() >= options_.max_sequences + options_.max_waiting) {
    return absl::ResourceExhaustedError(
        absl::StrCat("slots: this node holds ", size(),
                     " sequences, its limit (max-sequences and those that may wait)"));
  }
  if (short_of_blocks_) {
    return absl::ResourceExhaustedError(
        "KV pool: no new sequence is admitted while running ones wait for blocks");
  }
  return absl::OkStatus();
}

absl::StatusOr<SequenceId> SequenceScheduler::Admit(SequenceInput input, bool generates) {
  RETURN_IF_ERROR(CanAdmit(input, generates));
  const kv::BlockLayout& layout = options_.spec.layout;
  const int64_t prompt_tokens = static_cast<int64_t>(input.prompt.size());
  const int64_t prompt_blocks = layout.BlocksFor(prompt_tokens);
  const int64_t blocks_max = BlocksMax(input, generates);
  auto sequence = std::make_unique<Sequence>();
  sequence->id = SequenceId(next_id_);
  sequence->tokens_max = MaxTokens(input, options_.spec.context_tokens);
  sequence->tokens = std::move(input.prompt);
  sequence->prompt_tokens = prompt_tokens;
  sequence->salt = SaltOf(input);
  sequence->outgrows = blocks_max > options_.num_blocks;
  sequence->generates = generates;
  sequence->input = std::move(input);
  if (!AcquireBlocks(*sequence, std::min(prompt_blocks + (generates ? 1 : 0), blocks_max))) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV pool: ", prompt_blocks, " blocks are needed, ", pool_.counts().available(),
                     " of ", options_.num_blocks, " are available"));
  }
  sequence->cached_tokens = sequence->num_computed;
  const auto cached =
      absl::MakeConstSpan(sequence->blocks).subspan(0, static_cast<size_t>(sequence->num_sealed));
  pool_.CountUse(cached);
  sequence->brought_tokens = TakeBrought(cached, layout.block_tokens, pool_);
  sequence->rank = RankOf(*sequence);
  ++next_id_;
  const SequenceId id = sequence->id;
  if (sequence->awaits_constraint()) {
    // Tokens that were delivered may complete the answer: its last node was lost before it said so.
    sequence->verdict_due = sequence->input.delivered_tokens > 0 && sequence->unscored() == 0;
    constraint_turns_.Add(id);
  }
  sequences_.emplace(id, std::move(sequence));
  return id;
}

absl::Time SequenceScheduler::RankOf(const Sequence& sequence) const {
  cost::StepShape rest;
  rest.Add(sequence.num_computed, sequence.remaining(), /*sample=*/true);
  const absl::Duration compute_time = absl::Microseconds(meter_.cost().Predict(rest).us);
  const request::Urgency urgency = {.priority = sequence.input.priority,
                                    .due_within = sequence.input.first_token_within};
  return request::RankOf(options_.queue_order, sequence.input.arrived, urgency, compute_time);
}

void SequenceScheduler::Schedule(SequenceId id) {
  Sequence& sequence = At(id);
  TANDEM_CHECK(sequence.phase == SequencePhase::kHeld, "sequence ", id.value());
  sequence.phase = SequencePhase::kWaiting;
  waiting_.emplace(sequence.order(), &sequence);
  CountPrefill(sequence);
}

void SequenceScheduler::MarkReceived(SequenceId id, int64_t tokens) {
  Sequence& sequence = At(id);
  TANDEM_CHECK(sequence.phase == SequencePhase::kHeld && tokens >= sequence.num_computed &&
                   tokens <= sequence.prompt_tokens,
               "sequence ", id.value(), " received up to ", tokens);
  // The node that computed the whole prompt has scored it.
  if (tokens == sequence.prompt_tokens) sequence.num_scored += sequence.unscored();
  TakeComputed(sequence, tokens);
  Schedule(id);
}

const Sequence& SequenceScheduler::AppendToken(SequenceId id, TokenId token) {
  return Append(At(id), token);
}

const Sequence& SequenceScheduler::AppendSampled(const StepOutcome& outcome) {
  TANDEM_CHECK(outcome.sampled, "sequence ", outcome.id.value(), " has no new token");
  return Append(*outcome.sequence, outcome.token.token);
}

const Sequence& SequenceScheduler::Append(Sequence& sequence, TokenId token) {
  TANDEM_CHECK(sequence.remaining() == 0 && !sequence.released, "sequence ", sequence.id.value(),
               " has ", sequence.remaining(), " tokens to compute before another");
  sequence.tokens.push_back(token);
  MakeRoom(sequence);
  return sequence;
}

// Lists of tokens double their memory. Those of sequences that began together would all do so in
// the same steps, so this does it before, for one of them a step.
void SequenceScheduler::MakeRoom(Sequence& sequence) {
  std::vector<TokenId>& tokens = sequence.tokens;
  const size_t most = static_cast<size_t>(sequence.tokens_max);
  if (room_made_ || tokens.capacity() - tokens.size() >= kRoomAhead || tokens.capacity() >= most)
    return;
  tokens.reserve(std::min(2 * tokens.capacity(), most));
  room_made_ = true;
}

absl::StatusOr<ConstraintTurns::Progress> SequenceScheduler::AdvanceConstraint(SequenceId id,
                                                                               TokenId token) {
  Sequence& sequence = At(id);
  if (!sequence.input.matcher.has_value()) return ConstraintTurns::Progress::kReady;
  return constraint_turns_.Advance(sequence, token);
}

std::vector<ConstraintTurns::Settled> SequenceScheduler::FollowConstraints() {
  constraint_turns_.Begin();
  if (!constraint_turns_.any()) return {};
  std::vector<ConstraintTurns::Settled> settled = constraint_turns_.Run([this](SequenceId id) {
    const auto it = sequences_.find(id);
    const bool used = it != sequences_.end() && !it->second->released &&
                      it->second->phase != SequencePhase::kParked;
    return used ? it->second.get() : nullptr;
  });
  std::erase_if(
      settled, [](const ConstraintTurns::Settled& s) { return s.progress.ok() && !s.verdict_due; });
  return settled;
}

void SequenceScheduler::LeaveQueues(Sequence& sequence) {
  waiting_.erase(sequence.order());
  running_.erase(sequence.order());
  prefill_tokens_waiting_ -= std::exchange(sequence.counted_prefill, 0);
}

void SequenceScheduler::CountPrefill(Sequence& sequence) {
  const int64_t tokens = sequence.remaining() > 1 ? sequence.remaining() : 0;
  prefill_tokens_waiting_ += tokens - std::exchange(sequence.counted_prefill, tokens);
}

void SequenceScheduler::Park(SequenceId id) {
  Sequence& sequence = At(id);
  LeaveQueues(sequence);
  sequence.phase = SequencePhase::kParked;
  if (!sequence.in_step) sequence.token_counts = {};
}

void SequenceScheduler::Release(SequenceId id) {
  Sequence& sequence = At(id);
  LeaveQueues(sequence);
  sequence.released = true;
  if (!sequence.in_step) Erase(sequence);
}

// ---- steps

absl::Span<const engine::SequenceSlice> SequenceScheduler::PlanStep(absl::Time now) {
  TANDEM_CHECK(planned_.empty(), "PlanStep before FinishStep of the step before");
  now_ = now;
  prompts_wait_.reset();
  slices_.clear();
  shape_ = {};
  step_goal_ =
      options_.itl_slo > absl::ZeroDuration() ? options_.itl_slo : absl::InfiniteDuration();
  short_of_blocks_ = false;
  room_made_ = false;
  FillRunning();
  if (PlanSuspect()) return slices_;
  PlanRows();
  while (slices_.empty() && MakeRoomForLost()) {
    FillRunning();
    PlanRows();
  }
  return slices_;
}

void SequenceScheduler::PlanRows() {
  int64_t rows = options_.max_batch_tokens;
  bool prompts = false;
  for (auto it = running_.begin(); it != running_.end();) {
    Sequence& sequence = *it->second;
    prompts |= sequence.remaining() > 1 || sequence.rebuild != nullptr;
    const int64_t preempted = preemption_count_;
    if (PlanRow(sequence)) {
      step_goal_ = std::min(step_goal_, sequence.input.step_goal);
      --rows;
    }
    // Growing may preempt later sequences.
    it = preemption_count_ == preempted ? std::next(it) : running_.upper_bound(sequence.order());
  }
  if (!prompts) return;
  for (const auto& [id, sequence] : running_) {
    if (rows == 0) break;
    if (!sequence->takes_chunks() || sequence->in_step || sequence->skips_step()) continue;
    const int64_t chunk = AddChunk(*sequence, rows);
    if (chunk == 0 && (sequence->grows || sequence->rebuild != nullptr)) continue;
    if (chunk == 0) break;
    rows -= chunk;
  }
}

bool SequenceScheduler::PlanRow(Sequence& sequence) {
  if (sequence.rebuild != nullptr) {
    const bool goes_on = TakeKept(sequence, options_.spec, pool_);
    CountPrefill(sequence);
    if (!goes_on) return false;
    ++rebuilds_.done;
  }
  const int64_t remaining = sequence.remaining();
  // A prompt that was computed for another node stays until its units are lent.
  if (remaining == 0 || sequence.skips_step()) return false;
  if (remaining == 1) {
    if (!Grow(sequence)) return false;
    AddSlice(sequence, 1);
    return true;
  }
  const std::optional<kv::PartIndex::Found> fork = PinForkOf(sequence);
  if (!fork.has_value()) return false;
  AddSlice(sequence, 1, fork);
  return true;
}

// Moves waiting sequences into free slots in order; a preempted one needs its blocks
// first, and delays those behind it until it has them.
void SequenceScheduler::FillRunning() {
  const bool closed = rules_.generates && options_.static_batches && !running_.empty();
  while (!closed && !waiting_.empty() &&
         static_cast<int64_t>(running_.size()) < options_.max_sequences) {
    const auto next = std::find_if(waiting_.begin(), waiting_.end(), [](const auto& entry) {
      return !entry.second->yields_to_older;
    });
    if (next == waiting_.end()) break;
    Sequence& sequence = *next->second;
    if (sequence.blocks.empty()) {
      if (sequence.reading_back) {
        short_of_blocks_ = true;
        return;
      }
      const int64_t needed =
          options_.spec.layout.BlocksFor(static_cast<int64_t>(sequence.tokens.size()));
      while (!AcquireToResume(sequence, needed)) {
        // With sequences running there will be blocks when one of them ends.
        if (running_.empty() && PreemptFor(sequence)) continue;
        short_of_blocks_ = true;
        return;
      }
      CountPrefill(sequence);
    }
    waiting_.erase(sequence.order());
    sequence.phase = SequencePhase::kRunning;
    running_.emplace(sequence.order(), &sequence);
  }
  for (const auto& [id, sequence] : waiting_)
    short_of_blocks_ |= sequence->blocks.empty() && !sequence->yields_to_older;
}

void SequenceScheduler::AddSlice(Sequence& sequence, int64_t num_rows,
                                 std::optional<kv::PartIndex::Found> copied) {
  const int64_t first_row = sequence.num_computed + (copied.has_value() ? copied->rows : 0);
  const bool sample = first_row + num_rows == std::ssize(sequence.tokens);
  const auto forked_from = copied.has_value() ? std::optional(copied->block) : std::nullopt;
  SequenceInput& input = sequence.input;
  const bool guided = sample && input.matcher.has_value();
  // Filled in place: the processor waits long for copies of what was just written piece by piece.
  engine::SequenceSlice& slice = slices_.emplace_back();
  slice.tokens = sequence.tokens;
  slice.num_computed = first_row;
  slice.num_new = num_rows;
  slice.blocks = sequence.blocks;
  if (sequence.rebuild != nullptr) slice.blocks = slice.blocks.first(sequence.rebuild->held);
  if (!sequence.remote.lent.empty()) slice.remote = &sequence.remote;
  slice.forked_from = forked_from;
  slice.sample = sample;
  slice.prompt_tokens = sequence.prompt_tokens - input.delivered_tokens;
  if (sample && input.sampling.has_penalties()) {
    tokens_counted_ += sequence.token_counts.Extend(sequence.tokens, slice.prompt_tokens,
                                                    options_.spec.vocab_size);
    slice.counts = &sequence.token_counts;
  }
  slice.sequence_index = input.sequence_index;
  slice.sampling = &input.sampling;
  slice.stop = &input.stop;
  if (guided)
    slice.allowed = *input.matcher->Allowed();  // ConstraintTurns checked that there is one
  else
    slice.eos_token_ids = input.eos_token_ids;  // else a constraint's mask decides when to end
  slice.prompt_logprobs = input.prompt_logprobs.value_or(0);
  if (sequence.unscored() > 0) slice.prompt_scores = &sequence.step_scores;
  PlannedSlice& planned = planned_.emplace_back();
  planned.id = sequence.id;
  planned.sequence = &sequence;
  planned.first_row = first_row;
  planned.num_rows = num_rows;
  planned.sample = sample;
  planned.forked_from = forked_from;
  shape_.Add(first_row, num_rows, sample);
  sequence.in_step = true;
  sequence.lacks_room = false;
}

bool SequenceScheduler::PlanSuspect() {
  while (!suspects_.empty()) {
    const auto it = sequences_.find(suspects_.back());
    suspects_.pop_back();
    if (it == sequences_.end() || it->second->phase != SequencePhase::kRunning) continue;
    Sequence& sequence = *it->second;
    if (sequence.skips_step()) continue;
    if (sequence.remaining() == 1 && sequence.rebuild == nullptr && !Grow(sequence)) continue;
    const int64_t rows = TakeRows(sequence,
                                  std::min({sequence.remaining(), options_.max_batch_tokens,
                                            RowsHeld(sequence, options_.spec)}),
                                  options_.spec.layout, pool_);
    if (rows == 0) continue;
    AddSlice(sequence, rows);
    return true;
  }
  return false;
}

bool SequenceScheduler::OnStepFailed(const absl::Status& status) {
  if (rules_.retry_alone && planned_.size() > 1) {
    for (auto slice = planned_.rbegin(); slice != planned_.rend(); ++slice)
      suspects_.push_back(slice->id);
    return true;
  }
  if (status.code() != absl::StatusCode::kDataLoss) return false;
  for (const PlannedSlice& slice : planned_) {
    Sequence& sequence = *slice.sequence;
    ForgetFrom(sequence, sequence.blocks.front(), pool_);
  }
  return false;
}

const StepResult& SequenceScheduler::FinishStep(
    const absl::StatusOr<std::vector<engine::SampledToken>>& result) {
  constraint_turns_.Begin();
  const int64_t sampling = shape_.sampled_rows;
  StepResult& step = finished_;
  step.status = result.status();
  step.outcomes.clear();
  if (result.ok() && static_cast<int64_t>(result->size()) != sampling) {
    step.status = absl::InternalError(
        absl::StrCat("engine returned ", result->size(), " tokens, expected ", sampling));
  }
  const bool tried_again = !step.status.ok() && OnStepFailed(step.status);
  for (const PlannedSlice& slice : planned_)
    if (slice.forked_from.has_value() && !TANDEM_MUTATED(kForkNeverUnpinned))
      pool_.UnpinPart(*slice.forked_from);
  const absl::Duration waited = std::exchange(creditors_awaited_, absl::ZeroDuration());
  size_t next_token = 0;
  for (const PlannedSlice& slice : planned_) {
    Sequence& sequence = *slice.sequence;
    sequence.in_step = false;
    if (sequence.phase == SequencePhase::kParked) sequence.token_counts = {};
    if (step.status.ok() && (!sequence.remote.failure.ok() || sequence.gives_up_loans)) {
      // Its rows are wrong, or its blocks are wanted: what it has lost is computed again.
      if (slice.sample) ++next_token;
      sequence.released ? Erase(sequence) : ComputeLostInStep(sequence);
      continue;
    }
    StepOutcome& outcome = step.outcomes.emplace_back();
    outcome.id = slice.id;
    outcome.sequence = &sequence;
    outcome.status = step.status;
    if (step.status.ok()) {
      CountLentUse(sequence, slice, waited);
      if (sequence.rebuild != nullptr) rebuilds_.rows += slice.num_rows;
      sequence.forked_tokens += std::max<int64_t>(
          0, std::min(slice.first_row, sequence.prompt_tokens) - sequence.num_computed);
      TakeComputed(sequence, slice.first_row + slice.num_rows);
      if (slice.sample) TakeToken(sequence, (*result)[next_token++], pool_, outcome);
      TakeScores(sequence, slice.first_row, outcome);
    }
    sequence.step_scores.clear();
    const bool reported = sequence.phase == SequencePhase::kRunning && !tried_again;
    if (!reported || sequence.released) step.outcomes.pop_back();
    if (sequence.released) Erase(sequence);
  }
  planned_.clear();
  slices_.clear();
  return step;
}

}  // namespace tandem::node
