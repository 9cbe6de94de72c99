// The rows of lost units: a sequence whose loans were lost keeps the rest, and computes the lost
// units' rows again from its tokens.
//
//   units     0    1    2    3    4    5    6
//             lent lent LOST LOST lent here here
//   sequence  ───────▶                             num_computed, remote.lent
//   rebuild                       later kept_first its end is before unit 4
//
// The sequence stands before the lost units, as a prompt whose end is rebuild->end. It takes blocks
// as it is computed, or finds them in the prefix cache, and may lend them meanwhile. Once it has
// computed all rows before a loan that it has kept, and lent their units, that loan follows again;
// once it has computed all before the blocks that it has kept here, it goes on where it was. No row
// before that samples a token.
//
// What the node's own storage has of the lost units is read into the prefix cache, if that is
// predicted to be sooner there than computed (stored_blocks.h).
//
// Another node may still hold the blocks of lost units, as prefix cache. Then a loan of theirs
// takes the lost one's place, and their rows need not be computed.
//
// With windowed layers that is the only way: their KV of lent tokens is nowhere, and lost rows
// would look back on it. The sequence then sits out until its lost units are lent again, or it is
// computed again as a whole. Prompts that are computed for another node have no rebuild.
//
// Thread safety: none; the engine thread. Owner: the SequenceScheduler, whose pool and sequences
// these functions take.
#pragma once

#include <cstdint>

#include "common/engine/engine.h"
#include "common/kv/block_pool.h"
#include "common/node/lent_units.h"
#include "common/node/sequence.h"

namespace tandem::node {

// Whether a sequence that has lost loans can keep the rest.
bool CanRebuild(const Sequence& sequence);

// Forgets what the sequence has lent under `lost`, and places it before the first lost unit. What
// it had computed of units that it lost before, after that place, goes back to `pool`, as cached
// blocks. False: it has lent nothing under `lost`. REQUIRES: CanRebuild.
bool LoseUnits(Sequence& sequence, LoanId lost, const engine::EngineSpec& spec,
               kv::BlockPool& pool);

// Whether the sequence waits for these lost units, whose blocks a creditor holds: they follow what
// it has lent, or will once units before them are lent again.
bool AwaitsUnits(const Sequence& sequence, const engine::UnitSpan& units,
                 const engine::EngineSpec& spec);

// The blocks that it computes next, from the first one that it neither lends nor has here. Empty
// unless it computes lost rows and stands at the beginning of such a block.
OrdinalSpan LostBlocks(const Sequence& sequence, const engine::EngineSpec& spec);

// A creditor holds these lost units: what was computed of them goes back to `pool`, as cached
// blocks, and the sequence stands behind them. REQUIRES: AwaitsUnits; they follow what it has lent.
void RegainUnits(Sequence& sequence, const engine::LentUnits& lent, const engine::EngineSpec& spec,
                 kv::BlockPool& pool);

// Takes lost blocks that the prefix cache has, and what it has kept and now follows. True: the
// sequence goes on where it was, and has no rebuild any more. REQUIRES: it has one.
bool TakeKept(Sequence& sequence, const engine::EngineSpec& spec, kv::BlockPool& pool);

// Takes blocks for the next `rows` lost rows, as many as are available. Returns how many it lacks.
int64_t TakeBlocksForRows(Sequence& sequence, int64_t rows, const engine::EngineSpec& spec,
                          kv::BlockPool& pool);

// Gives the first unit that it has kept here back to `pool`, as cached blocks, and computes it
// again like a lost one: the blocks make room for those before. False: it has none to spare.
bool GiveUpKeptUnit(Sequence& sequence, const engine::EngineSpec& spec, kv::BlockPool& pool);

}  // namespace tandem::node
