// The part of SequenceScheduler (sequence_scheduler.h) that gives sequences their blocks and takes
// them back.
#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/node/lent_units.h"
#include "common/node/prompt_chunk.h"
#include "common/node/sequence_fork.h"
#include "common/node/sequence_scheduler.h"
#include "common/node/sequence_window.h"

namespace tandem::node {

int64_t SequenceScheduler::MatchableBlocks(const Sequence& sequence) const {
  const int64_t block_tokens = options_.spec.layout.block_tokens;
  const int64_t blocks = (std::ssize(sequence.tokens) - 1) / block_tokens;
  // A cached block has KV and no logits: rows whose tokens are scored must be computed.
  return sequence.unscored() > 0 ? std::min(blocks, sequence.num_scored / block_tokens) : blocks;
}

// Fills an empty block table with `count` blocks: first from the prefix cache, then free ones. All
// or nothing. At least the last token is left to compute.
bool SequenceScheduler::AcquireBlocks(Sequence& sequence, int64_t count) {
  TANDEM_CHECK(sequence.blocks.empty() && sequence.num_computed == 0);
  // Of a prompt that is larger than the pool, as much as leaves room to lend it piece by piece.
  sequence.grows = count > options_.num_blocks;
  if (sequence.grows) count = (options_.num_blocks + 1) / 2;
  ExtendHashes(sequence);
  const int64_t block_tokens = options_.spec.layout.block_tokens;
  int64_t matchable = MatchableBlocks(sequence);
  if (sequence.grows) matchable = std::min(matchable, count);
  const auto hashes = absl::MakeConstSpan(sequence.hashes).subspan(0, matchable);
  // Before Match, which costs more, and moves what it returns to the end of the eviction order.
  if (count > pool_.counts().available()) {
    const auto found = hashes.first(static_cast<size_t>(pool_.MatchLength(hashes)));
    if (count - std::ssize(found) > pool_.AvailableBeside(found)) return false;
  }
  std::vector<BlockId> blocks = pool_.Match(hashes, sequence.input.owner);
  const int64_t matched = static_cast<int64_t>(blocks.size());
  const auto fresh = pool_.Allocate(count - matched, sequence.input.owner);
  sequence.blocks = std::move(blocks);
  if (fresh.ok()) sequence.blocks.insert(sequence.blocks.end(), fresh->begin(), fresh->end());
  if (!BeginWindow(sequence, matched, options_.spec.layout, pool_) || !fresh.ok()) {
    ReturnBlocks(sequence);
    return false;
  }
  sequence.num_computed = matched * block_tokens;
  sequence.num_sealed = matched;
  return true;
}

bool SequenceScheduler::AcquireToResume(Sequence& sequence, int64_t count) {
  const auto is_missing = [this](const std::optional<kv::BlockHash>& hash) {
    return !hash.has_value() || !pool_.Find(*hash).has_value();
  };
  const bool unchanged = shortage_.has_value() && shortage_->id == sequence.id &&
                         shortage_->count == count && shortage_->releases == pool_.releases() &&
                         is_missing(shortage_->next);
  if (unchanged) return false;
  shortage_.reset();
  if (AcquireBlocks(sequence, count)) return true;
  // Whether there are slots is not remembered.
  if (pool_.windowed()) return false;
  const auto hashes =
      absl::MakeConstSpan(sequence.hashes).first(static_cast<size_t>(MatchableBlocks(sequence)));
  const auto found = static_cast<size_t>(pool_.MatchLength(hashes));
  shortage_ = {.id = sequence.id, .count = count, .releases = pool_.releases()};
  if (found < hashes.size()) shortage_->next = hashes[found];
  return false;
}

// Leaves first, so that a prefix stays in the cache longer than what follows it.
void SequenceScheduler::ReturnBlocks(Sequence& sequence) {
  EndWindow(sequence, pool_);
  for (auto it = sequence.blocks.rbegin(); it != sequence.blocks.rend(); ++it)
    if (*it != engine::kNoBlock) pool_.Unref(*it);
  for (const engine::LentUnits& lent : sequence.remote.lent) ended_loans_.push_back(lent.loan);
  if (sequence.rebuild != nullptr)
    for (const engine::LentUnits& lent : sequence.rebuild->later) ended_loans_.push_back(lent.loan);
  sequence.remote = {};
  sequence.token_counts = {};
  sequence.rebuild.reset();
  sequence.gives_up_loans = sequence.awaits_loans = sequence.awaits_creditors = false;
  sequence.lacks_room = false;
  sequence.lost_loans.clear();
  sequence.blocks.clear();
  sequence.num_computed = 0;
  sequence.num_sealed = 0;
}

void SequenceScheduler::ExtendHashes(Sequence& sequence) {
  const size_t block_tokens = options_.spec.layout.block_tokens;
  const auto tokens = absl::MakeConstSpan(sequence.tokens);
  if (sequence.hashes.empty()) {
    sequence.hashes = hasher_.Blocks(sequence.salt, tokens, static_cast<int>(block_tokens));
    return;
  }
  while ((sequence.hashes.size() + 1) * block_tokens <= tokens.size()) {
    const size_t begin = sequence.hashes.size() * block_tokens;
    sequence.hashes.push_back(
        hasher_.Next(sequence.hashes.back(), tokens.subspan(begin, block_tokens)));
  }
}

void SequenceScheduler::SealComputed(Sequence& sequence) {
  const int64_t block_tokens = options_.spec.layout.block_tokens;
  if (sequence.num_computed < (sequence.num_sealed + 1) * block_tokens) return;
  const int64_t full = sequence.num_computed / block_tokens;
  ExtendHashes(sequence);
  for (; sequence.num_sealed < full; ++sequence.num_sealed) {
    const auto i = static_cast<size_t>(sequence.num_sealed);
    pool_.Seal(sequence.blocks[i], sequence.hashes[i], kv::ParentOf(sequence.hashes, i));
  }
}

void SequenceScheduler::TakeComputed(Sequence& sequence, int64_t num_computed) {
  const bool had_prompt = sequence.num_computed >= sequence.prompt_tokens;
  sequence.num_computed = num_computed;
  if (sequence.phase == SequencePhase::kRunning && !sequence.released) CountPrefill(sequence);
  SealComputed(sequence);
  ShrinkWindow(sequence, options_.spec.layout, pool_);
  if (!had_prompt && num_computed >= sequence.prompt_tokens)
    NamePromptEnd(sequence, options_.spec.layout.block_tokens, pool_);
}

std::vector<SequenceId> SequenceScheduler::NextToResume(size_t most) const {
  std::vector<SequenceId> next;
  for (auto it = waiting_.begin(); it != waiting_.end() && next.size() < most; ++it)
    if (it->second->blocks.empty() && !it->second->yields_to_older) next.push_back(it->second->id);
  return next;
}

std::vector<kv::BlockHash> SequenceScheduler::HashesToResume(SequenceId id) {
  Sequence& sequence = At(id);
  ExtendHashes(sequence);
  const absl::Span<const kv::BlockHash> hashes = sequence.hashes;
  const absl::Span<const kv::BlockHash> useful = hashes.subspan(0, MatchableBlocks(sequence));
  return {useful.begin(), useful.end()};
}

void SequenceScheduler::SetReadingBack(SequenceId id, bool reading_back) {
  const auto it = sequences_.find(id);
  if (it == sequences_.end()) return;
  it->second->reading_back = reading_back;
  if (reading_back && it->second->rebuild != nullptr) ++rebuilds_.reads;
}

int64_t SequenceScheduler::RoomForOne() const {
  const kv::BlockPool::Counts counts = pool_.counts();
  const int64_t blocks = counts.free + counts.cached;
  if (!pool_.windowed()) return blocks;
  const int64_t slots = pool_.slot_counts().available();
  const bool short_of_slots = slots < KeptSlots(options_.spec.layout);
  return short_of_slots ? std::min(blocks, std::max<int64_t>(0, slots)) : blocks;
}

bool SequenceScheduler::AwaitPrompt(SequenceId id) {
  Sequence& sequence = At(id);
  TANDEM_CHECK(sequence.phase == SequencePhase::kHeld, "sequence ", id.value());
  return WindowToReceive(sequence, options_.spec.layout, pool_);
}

int32_t SequenceScheduler::HoldEndOnly(SequenceId id, int64_t blocks_max) {
  Sequence& sequence = At(id);
  TANDEM_CHECK(sequence.phase == SequencePhase::kHeld, "sequence ", id.value());
  const engine::EngineSpec& spec = options_.spec;
  const int64_t borrowable = Borrowable(sequence.input);
  if (borrowable == 0) return 0;
  const int64_t per_unit = spec.unit_tokens / spec.layout.block_tokens;
  // With one block for the next token.
  const int64_t blocks = spec.layout.BlocksFor(sequence.prompt_tokens) + 1;
  const int64_t units = (std::max<int64_t>(blocks - blocks_max, 0) + per_unit - 1) / per_unit;
  const int64_t needed_here = std::max(1, spec.window_tokens);
  const int64_t lendable = (sequence.prompt_tokens - needed_here) / spec.unit_tokens;
  if (units < 1 || units > lendable || units * per_unit > borrowable) return 0;
  ReturnBlocks(sequence);
  sequence.cached_tokens = 0;
  sequence.brought_tokens = {};
  const auto fresh = pool_.Allocate(blocks - units * per_unit, sequence.input.owner);
  if (!fresh.ok()) return 0;
  sequence.blocks.assign(static_cast<size_t>(units * per_unit), engine::kNoBlock);
  sequence.blocks.insert(sequence.blocks.end(), fresh->begin(), fresh->end());
  sequence.num_sealed = units * per_unit;
  sequence.grows = false;
  return static_cast<int32_t>(units);
}

void SequenceScheduler::AwaitLoans(SequenceId id, std::vector<engine::LentUnits> lent) {
  Sequence& sequence = At(id);
  TANDEM_CHECK(sequence.phase == SequencePhase::kHeld && !lent.empty() &&
                   BlocksOf(lent.back().units, options_.spec).end == sequence.num_sealed,
               "sequence ", id.value(), " takes over ", lent.size(), " loans");
  sequence.remote.lent = std::move(lent);
  sequence.awaits_loans = true;
}

void SequenceScheduler::CountLoan(SequenceId id, const std::string& creditor, int32_t units) {
  LentUse::Lent& lent = At(id).lent_use.creditors[creditor];
  ++lent.loans;
  lent.units += units;
}

void SequenceScheduler::ScheduleAfresh(SequenceId id) {
  ReturnBlocks(At(id));
  Schedule(id);
}

void SequenceScheduler::Erase(Sequence& sequence) {
  NameEnd(sequence, options_.spec.layout.block_tokens, pool_);
  ReturnBlocks(sequence);
  sequences_.erase(sequence.id);
}

std::vector<BlockId> SequenceScheduler::ReleaseQuarantining(SequenceId id, int64_t first_ordinal,
                                                            int64_t count) {
  Sequence& sequence = At(id);
  TANDEM_CHECK(sequence.phase == SequencePhase::kHeld && first_ordinal >= 0 && count >= 0 &&
                   first_ordinal + count <= static_cast<int64_t>(sequence.blocks.size()),
               "sequence ", id.value(), " ordinals from ", first_ordinal, " count ", count);
  // What may still be written keeps its slots.
  KeepSlots(sequence, first_ordinal, first_ordinal + count, pool_);
  sequence.first_slot = sequence.end_slot = 0;
  const auto begin = sequence.blocks.begin() + first_ordinal;
  std::vector<BlockId> quarantined(begin, begin + count);
  for (const BlockId block : quarantined) pool_.Quarantine(block);
  sequence.blocks.erase(begin, begin + count);
  Erase(sequence);
  return quarantined;
}

void SequenceScheduler::EndQuarantine(absl::Span<const BlockId> blocks) {
  for (const BlockId block : blocks) pool_.EndQuarantine(block);
}

bool SequenceScheduler::PromptsWait() {
  if (prompts_wait_.has_value()) return *prompts_wait_;
  prompts_wait_ = meter_.cost().samples() > 0;
  const int64_t block = options_.spec.layout.block_tokens;
  int64_t rows = 0;
  double row_us = 0;  // of steps with a block each
  for (const auto& [order, sequence] : running_) {
    if (!sequence->takes_chunks() || sequence->in_step || sequence->skips_step()) continue;
    if (rows == 0) {
      cost::StepShape with = shape_;
      with.Add(sequence->num_computed, block, /*sample=*/false);
      row_us = meter_.cost().Predict(with).us / static_cast<double>(block);
    }
    rows += sequence->remaining();
    const absl::Duration computing = absl::Microseconds(static_cast<double>(rows) * row_us);
    if (!PromptMayWait(*sequence, computing, now_)) {
      prompts_wait_ = false;
      break;
    }
    ++sequence->steps_passed;
  }
  return *prompts_wait_;
}

// A prompt that the pool cannot hold takes what blocks there are, and waits for units to be lent.
int64_t SequenceScheduler::ChunkOf(Sequence& sequence, int64_t rows_max) {
  if (!sequence.remote.lent.empty()) rows_max = std::min(rows_max, kRemoteRowsMax);
  const absl::Duration goal = rules_.generates ? step_goal_ : absl::InfiniteDuration();
  int64_t rows = FittingRows(sequence, shape_, meter_.cost(), {rows_max, goal});
  const int64_t block =
      std::min<int64_t>({options_.spec.layout.block_tokens, sequence.remaining(), rows_max});
  if (rows < block && shape_.prompt_rows == 0 && !PromptsWait()) rows = block;
  if (sequence.rebuild != nullptr) {
    short_of_blocks_ |= TakeBlocksForRows(sequence, rows, options_.spec, pool_) > 0;
    return std::min(rows, RowsHeld(sequence, options_.spec));
  }
  if (!sequence.grows) return TakeRows(sequence, rows, options_.spec.layout, pool_);
  // Once only its end is to be computed, which is sent to another node, it takes all of that.
  const int64_t to_lend = int64_t{sequence.input.split_units} * options_.spec.unit_tokens;
  const bool ends = !sequence.generates && sequence.num_computed >= to_lend;
  const int64_t needed =
      options_.spec.layout.BlocksFor(ends ? sequence.prompt_tokens : sequence.num_computed + rows);
  const int64_t lacking = needed - static_cast<int64_t>(sequence.blocks.size());
  const int64_t taken = std::min(std::max<int64_t>(lacking, 0), pool_.counts().available());
  const std::vector<BlockId> blocks = *pool_.Allocate(taken, sequence.input.owner);
  sequence.blocks.insert(sequence.blocks.end(), blocks.begin(), blocks.end());
  short_of_blocks_ |= taken < lacking;
  return TakeRows(sequence, std::min(rows, RowsHeld(sequence, options_.spec)), options_.spec.layout,
                  pool_);
}

int64_t SequenceScheduler::CopyableRows(const Sequence& sequence) const {
  if (!sequence.remote.lent.empty() || sequence.rebuild != nullptr) return 0;
  const PartName part = MissingPart(sequence, options_.spec.layout.block_tokens);
  return pool_.PartRows(part.parent, part.tokens);
}

bool SequenceScheduler::CanFork(SequenceId id) const {
  const Sequence& sequence = Get(id);
  const int64_t before_last = sequence.remaining() - 1;
  return before_last > 0 && CopyableRows(sequence) == before_last;
}

std::optional<kv::PartIndex::Found> SequenceScheduler::PinForkOf(Sequence& sequence) {
  const kv::BlockLayout& layout = options_.spec.layout;
  const int64_t end = layout.BlocksFor(std::ssize(sequence.tokens));
  if (sequence.remaining() <= 1 || CopyableRows(sequence) != sequence.remaining() - 1 ||
      end > std::ssize(sequence.blocks) || !MoveWindow(sequence, end, layout, pool_)) {
    return std::nullopt;
  }
  const PartName part = MissingPart(sequence, layout.block_tokens);
  return pool_.PinPart(part.parent, part.tokens);
}

int64_t SequenceScheduler::AddChunk(Sequence& sequence, int64_t rows_max) {
  const int64_t copyable = CopyableRows(sequence);
  int64_t rows = ChunkOf(sequence, rows_max + copyable);
  std::optional<kv::PartIndex::Found> copied;
  if (copyable > 0 && rows > copyable) {
    const PartName part = MissingPart(sequence, options_.spec.layout.block_tokens);
    copied = pool_.PinPart(part.parent, part.tokens);
  }
  rows = std::min(rows - (copied.has_value() ? copied->rows : 0), rows_max);
  if (rows > 0) AddSlice(sequence, rows, copied);
  return rows;
}

// Makes room for the KV of all tokens; false when the sequence must skip this step.
bool SequenceScheduler::Grow(Sequence& sequence) {
  const kv::BlockLayout& layout = options_.spec.layout;
  // As mostly.
  if (!pool_.windowed() &&
      std::ssize(sequence.tokens) <= std::ssize(sequence.blocks) * layout.block_tokens)
    return true;
  const int64_t needed = layout.BlocksFor(static_cast<int64_t>(sequence.tokens.size()));
  for (;;) {
    if (std::ssize(sequence.blocks) < needed) {
      if (const auto block = pool_.Allocate(1, sequence.input.owner); block.ok()) {
        sequence.blocks.push_back(block->front());
        continue;
      }
    } else if (MoveWindow(sequence, needed, layout, pool_)) {
      return true;
    }
    short_of_blocks_ = true;
    // Blocks that no running sequence holds (leases, quarantine) come back by their deadlines, and
    // those of units that move to a creditor soon.
    if (loan_expected_ || !sequence.generates || !PreemptFor(sequence)) {
      sequence.lacks_room = true;
      return false;
    }
  }
}

void SequenceScheduler::ComputeAgain(Sequence& sequence) {
  if (sequence.phase == SequencePhase::kParked) return;
  // Once for each loss; a sequence that yields to older ones has lost nothing.
  if (sequence.rebuild == nullptr && !sequence.yields_to_older) ++recomputed_for_loans_;
  if (!sequence.generates) {
    Park(sequence.id);
    splits_lost_.push_back(sequence.id);
    return;
  }
  Preempt(sequence);
}

void SequenceScheduler::Lend(SequenceId id, const engine::LentUnits& lent) {
  TakeLent(At(id), lent, options_.spec, pool_);
}

void SequenceScheduler::MoveLoan(SequenceId id, LoanId from, LoanId to) {
  ReplaceLoan(At(id), from, to);
  EndAwaitCreditors(id);
}

void SequenceScheduler::TakeHome(SequenceId id, absl::Span<const BlockId> blocks) {
  node::TakeHome(At(id), blocks, options_.spec);
  EndAwaitCreditors(id);
}

void SequenceScheduler::EndAwaitCreditors(SequenceId id) {
  const auto it = sequences_.find(id);
  if (it != sequences_.end()) it->second->awaits_creditors = false;
}

void SequenceScheduler::GiveUpLoans(SequenceId id) {
  Sequence& sequence = At(id);
  if (sequence.in_step) {
    // Not remote.failure: that is the engine's, which begins a step with a clean one.
    sequence.gives_up_loans = true;
    sequence.lost_loans.clear();
    return;
  }
  ComputeAgain(sequence);
}

void SequenceScheduler::LoseLoan(SequenceId id, LoanId loan) {
  Sequence& sequence = At(id);
  if (FindLent(sequence, loan) == nullptr) return;
  if (!sequence.in_step) return ComputeLost(sequence, {loan});
  const bool gives_up_all = sequence.gives_up_loans && sequence.lost_loans.empty();
  sequence.gives_up_loans = true;
  if (!gives_up_all) sequence.lost_loans.push_back(loan);
}

void SequenceScheduler::ComputeLostInStep(Sequence& sequence) {
  const engine::RemoteKv& remote = sequence.remote;
  std::vector<LoanId> lost = sequence.lost_loans;
  lost.insert(lost.end(), remote.failed.begin(), remote.failed.end());
  // A prompt for another node: layers of these rows, which are wrong, are on their way to it.
  if (!sequence.generates) lost.insert(lost.end(), remote.late.begin(), remote.late.end());
  const bool gives_up_all = sequence.gives_up_loans && sequence.lost_loans.empty();
  if (!gives_up_all && lost.empty() && !remote.late.empty()) {
    // The rows are computed again. It asks about them once the creditor has answered.
    sequence.awaits_creditors = true;
    sequence.remote.Begin();
    ++postponed_;
    return;
  }
  if (gives_up_all || lost.empty()) return ComputeAgain(sequence);
  ComputeLost(sequence, lost);
}

void SequenceScheduler::ComputeLost(Sequence& sequence, absl::Span<const LoanId> lost) {
  if (!CanRebuild(sequence)) return ComputeAgain(sequence);
  const bool begins = sequence.rebuild == nullptr;
  for (const LoanId loan : lost)
    if (LoseUnits(sequence, loan, options_.spec, pool_)) ended_loans_.push_back(loan);
  sequence.remote.Begin();
  sequence.gives_up_loans = sequence.awaits_creditors = false;
  sequence.lost_loans.clear();
  if (begins && sequence.rebuild != nullptr) {
    ++recomputed_for_loans_;
    ++rebuilds_.begun;
  }
  CountPrefill(sequence);
}

void SequenceScheduler::RegainUnits(SequenceId id, const engine::LentUnits& lent) {
  Sequence& sequence = At(id);
  node::RegainUnits(sequence, lent, options_.spec, pool_);
  CountPrefill(sequence);
}

bool SequenceScheduler::MakeRoomForLost() {
  if (loan_expected_) return false;
  const auto lacks = [](const Queue::value_type& entry) {
    const Sequence& sequence = *entry.second;
    return sequence.rebuild != nullptr && sequence.takes_chunks() && !sequence.skips_step();
  };
  const auto last = std::find_if(running_.rbegin(), running_.rend(), lacks);
  if (last == running_.rend()) return false;
  Sequence& sequence = *last->second;
  if (!GiveUpKeptUnit(sequence, options_.spec, pool_))
    ComputeAgain(sequence);
  else
    CountPrefill(sequence);
  return true;
}

void SequenceScheduler::CountLentUse(Sequence& sequence, const PlannedSlice& slice,
                                     absl::Duration waited) const {
  LentUse& use = sequence.lent_use;
  // Row i of the slice attends to first_row + i + 1 tokens.
  use.tokens += slice.num_rows * slice.first_row + slice.num_rows * (slice.num_rows + 1) / 2;
  const int32_t units = sequence.lent_units();
  if (units == 0) return;
  use.units_max = std::max(use.units_max, units);
  use.tokens_lent += slice.num_rows * units * options_.spec.unit_tokens;
  ++use.steps;
  use.waited += waited;
}

bool SequenceScheduler::HoldBack(const SequenceAge& age) {
  Sequence* last = nullptr;
  for (const auto& [order, sequence] : running_) {
    const SequenceAge own{sequence->input.arrived_us, options_.self};
    const bool younger = age.arrived_us > 0 && age < own;
    const int64_t blocks = options_.spec.layout.BlocksFor(std::ssize(sequence->tokens));
    const bool large = sequence->outgrows && 2 * blocks > options_.num_blocks;
    if (!younger || !large || sequence->yields_to_older || !sequence->generates) continue;
    // Of equal ones the last in order.
    if (last == nullptr || last->input.arrived_us <= sequence->input.arrived_us) last = sequence;
  }
  if (last == nullptr) return false;
  last->yields_to_older = true;
  ++held_back_count_;
  GiveUpLoans(last->id);
  return true;
}

void SequenceScheduler::EndHoldBack(const SequenceAge& age) {
  for (const auto& [id, sequence] : sequences_) {
    const SequenceAge own{sequence->input.arrived_us, options_.self};
    if (!(age < own)) sequence->yields_to_older = false;
  }
}

}  // namespace tandem::node
