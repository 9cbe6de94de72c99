// The hashes of a prompt's full blocks, as one sequence of a beam search hands them to those that
// continue it: each of them is a prompt of its own, of which only the end is new.
// Thread safety: none; the core's strand. Shared by a BeamGroup and its sequences.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/kv/block_hash.h"

namespace tandem::router {

struct HashedBlocks {
  uint64_t generation = 0;  // Fleet::generation() that they are of; 0 = there are none
  // Of the first blocks. Bound: the context's blocks. Shared by beams of one step; immutable.
  std::shared_ptr<const std::vector<kv::BlockHash>> hashes;
};

}  // namespace tandem::router
