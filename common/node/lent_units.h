// Which units of a sequence can be lent, and what the block table looks like once they are.
// Thread safety: pure functions of their arguments. Owner: the SequenceScheduler calls them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "common/node/sequence.h"

namespace tandem::node {

// The units after the lent ones that later steps need not have here: all of their tokens are
// computed, and neither the last computed token nor any that a layer's window reaches is among
// them. Of a prompt that is computed for another node, only those that it asks for: the others are
// sent to it. Of lost units, those that were computed again. Empty for an engine that does not
// lend, and for a sequence whose prompt tokens are scored.
engine::UnitSpan LendableUnits(const Sequence& sequence, const engine::EngineSpec& spec);

// What the sequence has lent under `loan`, and not lost; null: nothing.
const engine::LentUnits* FindLent(const Sequence& sequence, LoanId loan);

// Ordinals [first, end) of the blocks of some units.
struct OrdinalSpan {
  int64_t first = 0, end = 0;
  int64_t size() const { return end - first; }
};
OrdinalSpan BlocksOf(const engine::UnitSpan& units, const engine::EngineSpec& spec);

// Gives the units' blocks back to `pool`: they lie with a creditor from now on. REQUIRES: the units
// are the first of LendableUnits.
void TakeLent(Sequence& sequence, const engine::LentUnits& lent, const engine::EngineSpec& spec,
              kv::BlockPool& pool);

// `to` takes the place of the loan `from`: another creditor holds the same units. REQUIRES: the
// sequence has lent units under `from`.
void ReplaceLoan(Sequence& sequence, LoanId from, LoanId to);

// The units of the sequence's last loan are back in `blocks`, whose references it takes over.
// REQUIRES: the sequence has lent units and lost none, and `blocks` are as many as theirs.
void TakeHome(Sequence& sequence, absl::Span<const BlockId> blocks, const engine::EngineSpec& spec);

// Rows of a prompt, or of lost units, whose KV fits into the blocks that the sequence holds.
int64_t RowsHeld(const Sequence& sequence, const engine::EngineSpec& spec);

// Rows of one chunk of a prompt that has lent units: its queries and answers travel.
inline constexpr int64_t kRemoteRowsMax = 128;

}  // namespace tandem::node
