// Forks on one node: a sequence whose next block begins as a block of another sequence begins
// copies that block instead of computing its rows again. The beams of a step are forks of those of
// the step before; the answers of a request with several are forks of the first one; the next turn
// of a conversation is a fork of the answer before.
//
//   parent  [block 4][block 9: a b c d . .]
//   child   [block 4][block 7: a b c d e  ]    4 is shared, 9 is copied to 7, only e is computed
//
// The rows have a name in the pool, as a part of their block (BlockPool::NamePart). A sequence
// marked with forks_follow names the end of its prompt, since others will copy it soon; any other
// one names its own end when it leaves. The part outlives the sequence until its block is evicted,
// and another node may fetch it (prefix_fetch.h). A fork that finds no part computes the rows, with
// the same bits: so nothing depends on the parent's life, its node or room in the pool.
//
// Thread safety: none; the engine thread. Owner: the SequenceScheduler, whose pool and sequences
// these functions take.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/types/span.h"
#include "common/base/ids.h"
#include "common/kv/block_hash.h"
#include "common/kv/block_pool.h"
#include "common/node/sequence.h"

namespace tandem::node {

// What precedes a sequence's part, and the tokens of the part.
struct PartName {
  kv::BlockHash parent;
  absl::Span<const TokenId> tokens;  // of the sequence; empty = it has no such part
};

// The rows of its next block that `sequence` could begin with, less than all of the block, and
// without its last token's, which has to be computed because its logits are wanted. Empty unless
// the next row begins a block and needs no scores. REQUIRES: sequence.hashes cover its full blocks.
PartName MissingPart(const Sequence& sequence, int64_t block_tokens);

// The rows of the prompt in its last block.
PartName PromptEnd(const Sequence& sequence, int64_t block_tokens);

// Names the prompt's end, if the sequence is marked. REQUIRES: the prompt's KV is complete.
void NamePromptEnd(const Sequence& sequence, int64_t block_tokens, kv::BlockPool& pool);

// Names the computed rows of the block that is not full. No effect on a sequence that does not
// generate, is marked or has wrong blocks. REQUIRES: it leaves, and holds its blocks still;
// sequence.hashes cover its computed full blocks.
void NameEnd(const Sequence& sequence, int64_t block_tokens, kv::BlockPool& pool);

// Withdraws the sequence's block `damaged` and all later ones, which may have been computed from
// it, together with the parts that they may have been copied from. Blocks before it are intact.
void ForgetFrom(Sequence& sequence, BlockId damaged, kv::BlockPool& pool);

}  // namespace tandem::node
