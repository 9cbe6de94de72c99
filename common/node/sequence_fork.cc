#include "common/node/sequence_fork.h"

#include <algorithm>

#include "common/base/mutation.h"

namespace tandem::node {
namespace {

// The hash of what precedes the sequence's block `ordinal`.
const kv::BlockHash& ParentOf(const Sequence& sequence, int64_t ordinal) {
  return ordinal == 0 ? sequence.salt : sequence.hashes[static_cast<size_t>(ordinal - 1)];
}

}  // namespace

PartName MissingPart(const Sequence& sequence, int64_t block_tokens) {
  const int64_t rows = std::min(sequence.remaining(), block_tokens) - 1;
  const bool starts_block = sequence.num_computed % block_tokens == 0;
  if (rows < 1 || !starts_block || sequence.unscored() > 0) return {};
  const auto tokens = absl::MakeConstSpan(sequence.tokens);
  return {.parent = ParentOf(sequence, sequence.num_computed / block_tokens),
          .tokens = tokens.subspan(static_cast<size_t>(sequence.num_computed),
                                   static_cast<size_t>(rows))};
}

PartName PromptEnd(const Sequence& sequence, int64_t block_tokens) {
  const int64_t ordinal = (sequence.prompt_tokens - 1) / block_tokens;
  const int64_t first = ordinal * block_tokens;
  const auto tokens = absl::MakeConstSpan(sequence.tokens);
  return {.parent = ParentOf(sequence, ordinal),
          .tokens = tokens.subspan(static_cast<size_t>(first),
                                   static_cast<size_t>(sequence.prompt_tokens - first))};
}

void NamePromptEnd(const Sequence& sequence, int64_t block_tokens, kv::BlockPool& pool) {
  if (!sequence.input.forks_follow) return;
  const PartName end = PromptEnd(sequence, block_tokens);
  const int64_t ordinal = (sequence.prompt_tokens - 1) / block_tokens;
  pool.NamePart(sequence.blocks[static_cast<size_t>(ordinal)], end.parent, end.tokens);
}

void NameEnd(const Sequence& sequence, int64_t block_tokens, kv::BlockPool& pool) {
  if (!sequence.generates || sequence.input.forks_follow || sequence.damaged) return;
  // The token that was generated last has no KV.
  const int64_t ordinal = sequence.num_computed / block_tokens;
  int64_t rows = sequence.num_computed % block_tokens;
  if (rows == 0 || sequence.blocks[static_cast<size_t>(ordinal)] == engine::kNoBlock) return;
  if (TANDEM_MUTATED(kUncomputedRowNamed) && sequence.remaining() > 0) ++rows;
  const auto tokens = absl::MakeConstSpan(sequence.tokens);
  pool.NamePart(
      sequence.blocks[static_cast<size_t>(ordinal)], ParentOf(sequence, ordinal),
      tokens.subspan(static_cast<size_t>(ordinal * block_tokens), static_cast<size_t>(rows)));
}

void ForgetFrom(Sequence& sequence, BlockId damaged, kv::BlockPool& pool) {
  if (TANDEM_MUTATED(kForgetSkipped)) return;
  sequence.damaged = true;
  const auto found = std::find(sequence.blocks.begin(), sequence.blocks.end(), damaged);
  for (auto block = found; block != sequence.blocks.end(); ++block)
    if (*block != engine::kNoBlock) pool.Forget(*block);
  const auto last = static_cast<int64_t>(sequence.hashes.size());
  for (int64_t ordinal = found - sequence.blocks.begin(); ordinal <= last; ++ordinal)
    pool.ForgetParts(ParentOf(sequence, ordinal));
}

}  // namespace tandem::node
