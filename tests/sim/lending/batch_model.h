// A small model of a cluster that generates in continuous batches: nodes with pools of blocks and
// sequence slots, steps of a fixed price and a price for each row, and one queue. It exists to
// compare lending with what no node core does: live migration (Llumnix, OSDI 2024). Its migration
// is ideal, so its figures bound from above what a real one could reach: a move takes no time and
// costs nothing, and at any moment all running sequences may be packed anew.
// Thread safety: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "sim/world/schedule.h"

namespace tandem::sim {

// When each request is answered, in microseconds of virtual time. Uses of the schedule's topology:
// decode_nodes, blocks_per_node, block_tokens, max_sequences, max_batch_tokens, step_us and row_us.
// Requests are placed in order, on the node with the most free blocks that has room for the prompt
// and one more token, and one that finds none does not hold up smaller ones. A node whose pool is
// full preempts its youngest sequence, unless `migrates` and another node has room for it.
std::vector<int64_t> RunBatchModel(const Schedule& schedule, bool migrates);

}  // namespace tandem::sim
