#include "common/node/lent_units.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/node/sequence_window.h"

namespace tandem::node {

engine::UnitSpan LendableUnits(const Sequence& sequence, const engine::EngineSpec& spec) {
  const int32_t first = sequence.lent_units();
  if (spec.unit_tokens == 0 || sequence.input.prompt_logprobs.has_value()) return {first, first};
  // Once all lost units are computed, the next row lies behind what was kept.
  const bool rebuilt = sequence.rebuild != nullptr && sequence.remaining() == 0;
  const int64_t needed_here = rebuilt ? 0 : std::max(1, spec.window_tokens);
  int64_t end = std::max<int64_t>(0, sequence.num_computed - needed_here) / spec.unit_tokens;
  if (!sequence.generates) end = std::min<int64_t>(end, sequence.input.split_units);
  return {first, std::max(first, static_cast<int32_t>(end))};
}

const engine::LentUnits* FindLent(const Sequence& sequence, LoanId loan) {
  const auto find = [loan](const std::vector<engine::LentUnits>& lent) {
    const auto it = std::find_if(lent.begin(), lent.end(),
                                 [loan](const engine::LentUnits& l) { return l.loan == loan; });
    return it == lent.end() ? nullptr : &*it;
  };
  const engine::LentUnits* found = find(sequence.remote.lent);
  return found == nullptr && sequence.rebuild != nullptr ? find(sequence.rebuild->later) : found;
}

OrdinalSpan BlocksOf(const engine::UnitSpan& units, const engine::EngineSpec& spec) {
  const int64_t per_unit = spec.unit_tokens / spec.layout.block_tokens;
  return {units.first * per_unit, units.end * per_unit};
}

void TakeLent(Sequence& sequence, const engine::LentUnits& lent, const engine::EngineSpec& spec,
              kv::BlockPool& pool) {
  TANDEM_CHECK(!sequence.in_step && lent.units.first == sequence.lent_units() &&
                   lent.units.end <= LendableUnits(sequence, spec).end,
               "sequence ", sequence.id.value(), " lends units from ", lent.units.first, " to ",
               lent.units.end);
  const OrdinalSpan ordinals = BlocksOf(lent.units, spec);
  // No window reaches lent units.
  KeepSlots(sequence, ordinals.end, sequence.end_slot, pool);
  // Leaves first, so that a prefix stays in the cache longer than what follows it.
  for (int64_t i = ordinals.end - 1; i >= ordinals.first; --i) {
    pool.Unref(sequence.blocks[static_cast<size_t>(i)]);
    sequence.blocks[static_cast<size_t>(i)] = engine::kNoBlock;
  }
  sequence.remote.lent.push_back(lent);
}

void ReplaceLoan(Sequence& sequence, LoanId from, LoanId to) {
  auto* lent = const_cast<engine::LentUnits*>(FindLent(sequence, from));
  TANDEM_CHECK(!sequence.in_step && lent != nullptr, "sequence ", sequence.id.value(),
               " has lent nothing under loan ", from.value());
  lent->loan = to;
}

void TakeHome(Sequence& sequence, absl::Span<const BlockId> blocks,
              const engine::EngineSpec& spec) {
  TANDEM_CHECK(!sequence.in_step && !sequence.remote.lent.empty() && sequence.rebuild == nullptr,
               "sequence ", sequence.id.value());
  const OrdinalSpan ordinals = BlocksOf(sequence.remote.lent.back().units, spec);
  TANDEM_CHECK(std::ssize(blocks) == ordinals.end - ordinals.first, "sequence ",
               sequence.id.value(), " takes ", blocks.size(), " blocks home");
  std::copy(blocks.begin(), blocks.end(), sequence.blocks.begin() + ordinals.first);
  sequence.remote.lent.pop_back();
}

int64_t RowsHeld(const Sequence& sequence, const engine::EngineSpec& spec) {
  const int64_t held =
      sequence.rebuild != nullptr ? sequence.rebuild->held : std::ssize(sequence.blocks);
  return held * spec.layout.block_tokens - sequence.num_computed;
}

}  // namespace tandem::node
