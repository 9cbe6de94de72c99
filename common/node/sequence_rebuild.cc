#include "common/node/sequence_rebuild.h"

#include <algorithm>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace tandem::node {
namespace {

// Leaves first, so that a prefix stays in the cache longer than what follows it.
void ReturnOrdinals(Sequence& sequence, const OrdinalSpan& ordinals, kv::BlockPool& pool) {
  for (int64_t i = ordinals.end - 1; i >= ordinals.first; --i) {
    BlockId& block = sequence.blocks[static_cast<size_t>(i)];
    pool.Unref(block);
    block = engine::kNoBlock;
  }
}

int64_t LentBlocks(const Sequence& sequence, const engine::EngineSpec& spec) {
  return BlocksOf({0, sequence.lent_units()}, spec).end;
}

void SetEnd(Rebuild& rebuild, const engine::EngineSpec& spec) {
  rebuild.end = rebuild.later.empty()
                    ? rebuild.kept_first * spec.layout.block_tokens
                    : int64_t{rebuild.later.front().units.first} * spec.unit_tokens;
}

// The first `blocks` blocks of the sequence are lent, or lie here with their KV.
void StandBehind(Sequence& sequence, int64_t blocks, const engine::EngineSpec& spec) {
  sequence.rebuild->held = sequence.num_sealed = blocks;
  sequence.num_computed = blocks * spec.layout.block_tokens;
}

void TakeCached(Sequence& sequence, const engine::EngineSpec& spec, kv::BlockPool& pool) {
  Rebuild& rebuild = *sequence.rebuild;
  const OrdinalSpan lost = LostBlocks(sequence, spec);
  if (lost.size() == 0) return;
  const auto hashes =
      absl::MakeConstSpan(sequence.hashes)
          .subspan(static_cast<size_t>(lost.first), static_cast<size_t>(lost.size()));
  const std::vector<BlockId> cached = pool.Match(hashes, sequence.input.owner);
  std::copy(cached.begin(), cached.end(), sequence.blocks.begin() + rebuild.held);
  StandBehind(sequence, rebuild.held + std::ssize(cached), spec);
}

}  // namespace

bool CanRebuild(const Sequence& sequence) {
  return sequence.generates && sequence.phase == SequencePhase::kRunning && !sequence.awaits_loans;
}

bool LoseUnits(Sequence& sequence, LoanId lost, const engine::EngineSpec& spec,
               kv::BlockPool& pool) {
  const engine::LentUnits* found = FindLent(sequence, lost);
  TANDEM_CHECK(!sequence.in_step, "sequence ", sequence.id.value());
  if (found == nullptr) return false;
  const int32_t first_unit = found->units.first;
  if (sequence.rebuild == nullptr) {
    sequence.rebuild = std::make_unique<Rebuild>();
    sequence.rebuild->kept_first = LentBlocks(sequence, spec);
    sequence.rebuild->num_computed = sequence.num_computed;
    sequence.rebuild->num_sealed = sequence.num_sealed;
    sequence.rebuild->computes = !pool.windowed();
  } else if (first_unit < sequence.lent_units()) {
    ReturnOrdinals(sequence, {LentBlocks(sequence, spec), sequence.rebuild->held}, pool);
  }
  Rebuild& rebuild = *sequence.rebuild;
  auto& lent = sequence.remote.lent;
  const auto is_lost = [lost](const engine::LentUnits& l) { return l.loan == lost; };
  const auto at = std::find_if(lent.begin(), lent.end(), is_lost);
  if (at == lent.end()) {
    std::erase_if(rebuild.later, is_lost);
  } else {
    rebuild.later.insert(rebuild.later.begin(), at + 1, lent.end());
    lent.erase(at, lent.end());
    StandBehind(sequence, BlocksOf({0, first_unit}, spec).end, spec);
  }
  SetEnd(rebuild, spec);
  return true;
}

bool AwaitsUnits(const Sequence& sequence, const engine::UnitSpan& units,
                 const engine::EngineSpec& spec) {
  if (sequence.rebuild == nullptr || units.first < sequence.lent_units()) return false;
  if (units.first > sequence.lent_units()) return true;
  const int64_t end = int64_t{units.end} * spec.unit_tokens;
  return sequence.num_computed < end && end <= sequence.rebuild->end;
}

OrdinalSpan LostBlocks(const Sequence& sequence, const engine::EngineSpec& spec) {
  if (sequence.rebuild == nullptr || !sequence.rebuild->computes) return {};
  const int64_t held = sequence.rebuild->held, block_tokens = spec.layout.block_tokens;
  if (sequence.num_computed != held * block_tokens) return {};
  return {held, held + sequence.remaining() / block_tokens};
}

void RegainUnits(Sequence& sequence, const engine::LentUnits& lent, const engine::EngineSpec& spec,
                 kv::BlockPool& pool) {
  TANDEM_CHECK(!sequence.in_step && AwaitsUnits(sequence, lent.units, spec) &&
                   lent.units.first == sequence.lent_units(),
               "sequence ", sequence.id.value(), " unit ", lent.units.first);
  ReturnOrdinals(sequence, {LentBlocks(sequence, spec), sequence.rebuild->held}, pool);
  sequence.remote.lent.push_back(lent);
  StandBehind(sequence, LentBlocks(sequence, spec), spec);
}

bool TakeKept(Sequence& sequence, const engine::EngineSpec& spec, kv::BlockPool& pool) {
  Rebuild& rebuild = *sequence.rebuild;
  for (;;) {
    if (rebuild.computes) TakeCached(sequence, spec, pool);
    if (sequence.remaining() > 0) return false;
    if (rebuild.later.empty()) break;
    // Lent units ascend without a gap.
    if (sequence.lent_units() != rebuild.later.front().units.first) return false;
    sequence.remote.lent.push_back(rebuild.later.front());
    rebuild.later.erase(rebuild.later.begin());
    StandBehind(sequence, LentBlocks(sequence, spec), spec);
    SetEnd(rebuild, spec);
  }
  sequence.num_computed = rebuild.num_computed;
  sequence.num_sealed = rebuild.num_sealed;
  sequence.rebuild.reset();
  return true;
}

int64_t TakeBlocksForRows(Sequence& sequence, int64_t rows, const engine::EngineSpec& spec,
                          kv::BlockPool& pool) {
  Rebuild& rebuild = *sequence.rebuild;
  const int64_t lacking =
      std::max<int64_t>(0, spec.layout.BlocksFor(sequence.num_computed + rows) - rebuild.held);
  const int64_t taken = std::min(lacking, pool.counts().available());
  const std::vector<BlockId> blocks = *pool.Allocate(taken, sequence.input.owner);
  std::copy(blocks.begin(), blocks.end(), sequence.blocks.begin() + rebuild.held);
  rebuild.held += taken;
  return lacking - taken;
}

bool GiveUpKeptUnit(Sequence& sequence, const engine::EngineSpec& spec, kv::BlockPool& pool) {
  Rebuild& rebuild = *sequence.rebuild;
  const int64_t next = rebuild.kept_first + spec.unit_tokens / spec.layout.block_tokens;
  // The last row's block is not full, or nothing is computed behind it.
  if (next * spec.layout.block_tokens >= rebuild.num_computed) return false;
  ReturnOrdinals(sequence, {rebuild.kept_first, next}, pool);
  rebuild.kept_first = next;
  SetEnd(rebuild, spec);
  return true;
}

}  // namespace tandem::node
