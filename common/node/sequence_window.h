// The window slots of a sequence, where layers have windows (common/kv/block_layout.h): a sequence
// holds the slots of a run of its blocks, and gives back those that its window has left. All
// functions do nothing for layouts without windows.
//
//   blocks      0  1  2  3  4  5  6  7  8
//   slots       -  -  -  x  x  x  x  -  -     [first_slot, end_slot)
//   computed    ────────────────▶
//
// Between steps a sequence has reserved KeptSlots, or one for each block if it has fewer. So its
// next block always gets a slot, once it has given back those that its window has left. A long
// chunk of a prompt takes more for its step, if there are some.
// Thread safety: none; the engine thread. Owner: the SequenceScheduler, whose pool and sequences
// these functions take.
#pragma once

#include <cstdint>

#include "common/kv/block_layout.h"
#include "common/kv/block_pool.h"
#include "common/node/sequence.h"

namespace tandem::node {

// The slots that a sequence of many blocks holds between steps: those that its next row looks back
// on, that of the row's own block, and one ahead.
inline int64_t KeptSlots(const kv::BlockLayout& layout) { return layout.window_blocks() + 2; }

// For a sequence whose first `matched` blocks BlockPool::Match has pinned: reserves the slots that
// it keeps. False: there are too few. It holds those of Match in both cases.
bool BeginWindow(Sequence& sequence, int64_t matched, const kv::BlockLayout& layout,
                 kv::BlockPool& pool);
// Takes the slots of blocks up to `end`, exclusive. If it lacks some, it first gives back those
// that no later row needs. False when there are too few.
bool MoveWindow(Sequence& sequence, int64_t end, const kv::BlockLayout& layout,
                kv::BlockPool& pool);
// The most of `rows` next rows for whose blocks it can take slots; takes them.
int64_t TakeRows(Sequence& sequence, int64_t rows, const kv::BlockLayout& layout,
                 kv::BlockPool& pool);
// Gives back the slots beyond KeptSlots that no later row needs.
void ShrinkWindow(Sequence& sequence, const kv::BlockLayout& layout, kv::BlockPool& pool);
// Holds the slots that a row after the prompt looks back on, for another node's KV to land in, and
// no others. False when there are too few: the sequence can then only be released.
bool WindowToReceive(Sequence& sequence, const kv::BlockLayout& layout, kv::BlockPool& pool);
// Gives back the slots of blocks before `ordinal`, and of those from `end` on.
void KeepSlots(Sequence& sequence, int64_t ordinal, int64_t end, kv::BlockPool& pool);
// Gives back all slots, and what it has reserved.
void EndWindow(Sequence& sequence, kv::BlockPool& pool);

}  // namespace tandem::node
