#include "common/node/sequence_window.h"

#include <algorithm>

#include "absl/types/span.h"
#include "common/base/check.h"

namespace tandem::node {
namespace {

absl::Span<const BlockId> BlocksBetween(const Sequence& sequence, int64_t first, int64_t end) {
  TANDEM_CHECK(first <= end && end <= std::ssize(sequence.blocks), "window slots from ", first,
               " to ", end, " of a sequence of ", sequence.blocks.size(), " blocks");
  return absl::MakeConstSpan(sequence.blocks)
      .subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
}

int64_t KeptBy(const Sequence& sequence, const kv::BlockLayout& layout) {
  return std::min(std::ssize(sequence.blocks), KeptSlots(layout));
}

bool Reserve(Sequence& sequence, int64_t slots, kv::BlockPool& pool) {
  if (slots <= sequence.reserved_slots) return true;
  if (!pool.ReserveSlots(slots - sequence.reserved_slots)) return false;
  sequence.reserved_slots = slots;
  return true;
}

// Takes the slots [end_slot, end).
bool Extend(Sequence& sequence, int64_t end, const kv::BlockLayout& layout, kv::BlockPool& pool) {
  const int64_t held = std::max(end, sequence.end_slot) - sequence.first_slot;
  if (!Reserve(sequence, std::max(held, KeptBy(sequence, layout)), pool)) return false;
  if (end <= sequence.end_slot) return true;
  pool.AddSlots(BlocksBetween(sequence, sequence.end_slot, end));
  sequence.end_slot = end;
  return true;
}

void GiveBackLeft(Sequence& sequence, const kv::BlockLayout& layout, kv::BlockPool& pool) {
  KeepSlots(sequence, layout.FirstInWindow(sequence.num_computed), sequence.end_slot, pool);
}

}  // namespace

void KeepSlots(Sequence& sequence, int64_t ordinal, int64_t end, kv::BlockPool& pool) {
  if (!pool.windowed()) return;
  const int64_t first = std::clamp(ordinal, sequence.first_slot, sequence.end_slot);
  const int64_t last = std::clamp(end, first, sequence.end_slot);
  // In this order the end of the sequence, with which a continuation begins, stays the longest.
  pool.UnrefSlots(BlocksBetween(sequence, sequence.first_slot, first));
  pool.UnrefSlots(BlocksBetween(sequence, last, sequence.end_slot));
  sequence.first_slot = first;
  sequence.end_slot = last;
}

void EndWindow(Sequence& sequence, kv::BlockPool& pool) {
  KeepSlots(sequence, 0, 0, pool);
  pool.ReleaseSlots(sequence.reserved_slots);
  sequence.first_slot = sequence.end_slot = sequence.reserved_slots = 0;
}

bool BeginWindow(Sequence& sequence, int64_t matched, const kv::BlockLayout& layout,
                 kv::BlockPool& pool) {
  if (!pool.windowed()) return true;
  sequence.first_slot = pool.FirstWindowed(matched);
  sequence.end_slot = matched;
  return Extend(sequence, matched, layout, pool);
}

bool MoveWindow(Sequence& sequence, int64_t end, const kv::BlockLayout& layout,
                kv::BlockPool& pool) {
  if (!pool.windowed()) return true;
  if (end > sequence.end_slot) GiveBackLeft(sequence, layout, pool);
  return Extend(sequence, end, layout, pool);
}

int64_t TakeRows(Sequence& sequence, int64_t rows, const kv::BlockLayout& layout,
                 kv::BlockPool& pool) {
  if (!pool.windowed() || rows == 0) return rows;
  int64_t end = layout.BlocksFor(sequence.num_computed + rows);
  if (end > sequence.end_slot) {
    GiveBackLeft(sequence, layout, pool);
    const int64_t spare = sequence.reserved_slots - (sequence.end_slot - sequence.first_slot);
    end = std::min(end, sequence.end_slot + spare + pool.slot_counts().available());
    Extend(sequence, end, layout, pool);
  }
  return std::clamp<int64_t>(sequence.end_slot * layout.block_tokens - sequence.num_computed, 0,
                             rows);
}

void ShrinkWindow(Sequence& sequence, const kv::BlockLayout& layout, kv::BlockPool& pool) {
  if (!pool.windowed()) return;
  const int64_t surplus = sequence.end_slot - sequence.first_slot - KeptSlots(layout);
  const int64_t needed = layout.FirstInWindow(sequence.num_computed);
  if (surplus > 0) {
    KeepSlots(sequence, std::min(needed, sequence.first_slot + surplus), sequence.end_slot, pool);
  }
  const int64_t reserved =
      std::max(KeptBy(sequence, layout), sequence.end_slot - sequence.first_slot);
  if (reserved >= sequence.reserved_slots) return;
  pool.ReleaseSlots(sequence.reserved_slots - reserved);
  sequence.reserved_slots = reserved;
}

bool WindowToReceive(Sequence& sequence, const kv::BlockLayout& layout, kv::BlockPool& pool) {
  if (!pool.windowed()) return true;
  const int64_t first = layout.FirstInWindow(sequence.prompt_tokens);
  KeepSlots(sequence, first, sequence.end_slot, pool);
  sequence.first_slot = std::max(sequence.first_slot, first);
  sequence.end_slot = std::max(sequence.end_slot, sequence.first_slot);
  return Extend(sequence, layout.BlocksFor(sequence.prompt_tokens), layout, pool);
}

}  // namespace tandem::node
