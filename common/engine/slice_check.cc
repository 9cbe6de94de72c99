#include "common/engine/slice_check.h"

#include <algorithm>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace tandem::engine {
namespace {

// The blocks of the lent units, with which the table begins.
absl::StatusOr<int64_t> CheckLent(const SequenceSlice& slice, const EngineSpec& spec) {
  if (slice.remote == nullptr || slice.remote->lent.empty()) return 0;
  int32_t next = 0;
  for (const LentUnits& lent : slice.remote->lent) {
    if (lent.units.first != next || lent.units.end <= lent.units.first) {
      return absl::InvalidArgumentError(absl::StrCat("loan ", lent.loan.value(), " has units [",
                                                     lent.units.first, ", ", lent.units.end,
                                                     "), expected some from ", next));
    }
    next = lent.units.end;
  }
  const int64_t tokens = int64_t{next} * spec.unit_tokens;
  if (spec.unit_tokens == 0 || tokens > slice.num_computed - spec.window_tokens ||
      slice.forked_from.has_value() || slice.prompt_scores != nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        next, " units of ", spec.unit_tokens, " tokens are lent of ", slice.num_computed,
        " computed ones, expected an engine that borrows, at least ", spec.window_tokens,
        " tokens here, no fork and no prompt log-probabilities"));
  }
  return tokens / spec.layout.block_tokens;
}

absl::Status CheckSlice(const SequenceSlice& slice, const EngineSpec& spec, int64_t num_blocks) {
  const int64_t size = static_cast<int64_t>(slice.tokens.size());
  const int64_t end = slice.num_computed + slice.num_new;
  if (slice.num_computed < 0 || slice.num_new < 1 || end > size) {
    return absl::InvalidArgumentError(absl::StrCat("rows [", slice.num_computed, ", ", end,
                                                   "), expected a part of its ", size, " tokens"));
  }
  if (end > spec.context_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(end, " tokens, expected at most the context of ", spec.context_tokens));
  }
  const int64_t needed = spec.layout.BlocksFor(end);
  if (static_cast<int64_t>(slice.blocks.size()) < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat(slice.blocks.size(), " blocks, expected ", needed, " for ", end, " tokens"));
  }
  ASSIGN_OR_RETURN(const int64_t lent_blocks, CheckLent(slice, spec));
  for (int64_t i = lent_blocks; i < needed; ++i) {
    if (slice.blocks[i].value() < 0 || slice.blocks[i].value() >= num_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("block ", slice.blocks[i].value(),
                                                     ", expected one in [0, ", num_blocks, ")"));
    }
  }
  for (int64_t i = slice.num_computed; i < end; ++i) {
    if (slice.tokens[i] < 0 || slice.tokens[i] >= spec.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", slice.tokens[i], " at ", i, ", expected one in [0, ", spec.vocab_size, ")"));
    }
  }
  if (slice.sample && (slice.sampling == nullptr || end != size)) {
    return absl::InvalidArgumentError(
        absl::StrCat("samples after row ", end, " of ", size,
                     slice.sampling == nullptr ? " without sampling parameters" : " tokens"));
  }
  return absl::OkStatus();
}

// `copied_to`: the first block that each fork writes.
absl::Status CheckFork(const SequenceSlice& slice, const EngineSpec& spec, int64_t num_blocks,
                       const absl::flat_hash_set<BlockId>& copied_to) {
  const BlockId from = *slice.forked_from;
  if (slice.num_computed % spec.layout.block_tokens == 0) {
    return absl::InvalidArgumentError(absl::StrCat("a fork whose first new row ",
                                                   slice.num_computed,
                                                   " begins a block, expected rows to copy"));
  }
  if (from.value() < 0 || from.value() >= num_blocks) {
    return absl::InvalidArgumentError(
        absl::StrCat("a fork of block ", from.value(), ", expected one in [0, ", num_blocks, ")"));
  }
  if (copied_to.contains(from)) {
    return absl::InvalidArgumentError(absl::StrCat("a fork of block ", from.value(),
                                                   ", to which a fork of the same step is copied"));
  }
  return absl::OkStatus();
}

absl::Status CheckSlots(const SequenceSlice& slice, const kv::BlockArena& arena) {
  const kv::BlockLayout& layout = arena.layout();
  const int64_t end = layout.BlocksFor(slice.num_computed + slice.num_new);
  std::vector<BlockId> needed(slice.blocks.begin() + layout.FirstInWindow(slice.num_computed),
                              slice.blocks.begin() + end);
  if (slice.forked_from.has_value()) needed.push_back(*slice.forked_from);
  for (const BlockId block : needed) {
    if (arena.slots()->slot(block) == kv::SlotTable::kNone) {
      return absl::InvalidArgumentError(
          absl::StrCat("block ", block.value(), " has no window slot, rows from ",
                       slice.num_computed, " look back on ", layout.window_tokens, " tokens"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckSlices(absl::Span<const SequenceSlice> slices, const EngineSpec& spec,
                         const kv::BlockArena& arena) {
  RETURN_IF_ERROR(CheckSlices(slices, spec, arena.num_blocks()));
  if (arena.slots() == nullptr) return absl::OkStatus();
  for (size_t i = 0; i < slices.size(); ++i) {
    if (const absl::Status status = CheckSlots(slices[i], arena); !status.ok())
      return absl::InvalidArgumentError(absl::StrCat("slice ", i, ": ", status.message()));
  }
  return absl::OkStatus();
}

absl::Status CheckSlices(absl::Span<const SequenceSlice> slices, const EngineSpec& spec,
                         int64_t num_blocks) {
  absl::flat_hash_set<BlockId> written, copied_to;
  for (size_t i = 0; i < slices.size(); ++i) {
    const SequenceSlice& slice = slices[i];
    if (absl::Status status = CheckSlice(slice, spec, num_blocks); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("slice ", i, ": ", status.message()));
    }
    if (slice.forked_from.has_value())
      copied_to.insert(slice.blocks[slice.num_computed / spec.layout.block_tokens]);
    const int64_t last = (slice.num_computed + slice.num_new - 1) / spec.layout.block_tokens;
    for (int64_t b = slice.num_computed / spec.layout.block_tokens; b <= last; ++b) {
      if (!written.insert(slice.blocks[b]).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("slice ", i, ": block ", slice.blocks[b].value(), " is written twice"));
      }
    }
  }
  for (size_t i = 0; i < slices.size() && !copied_to.empty(); ++i) {
    if (!slices[i].forked_from.has_value()) continue;
    if (absl::Status status = CheckFork(slices[i], spec, num_blocks, copied_to); !status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("slice ", i, ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::engine
