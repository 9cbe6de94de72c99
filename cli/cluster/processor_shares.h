// How the processors of one host are shared between the nodes that it runs.
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "common/runtime/processors.h"

namespace tandem::cli {

struct ProcessorShare {
  int32_t threads = 1;  // compute threads
  // The processors that are the node's alone (a node's `cpus`); empty: the node's threads run
  // wherever the kernel puts them.
  std::string cpus;
};

// The share of node `index` of `nodes` (≥ 1) that compute on processors. Shares are whole cores and
// lie on one memory node each, which nodes take in turns: a single node has one memory node alone.
// Where a memory node has eight cores or more, one of them is nobody's share: routers and what
// moves messages run there. Nodes get processors of their own only where every share has four
// cores, some core is nobody's, and no control group limits the time; else all run where the kernel
// puts them, with as many threads as there are cores.
ProcessorShare ShareOf(const Processors& processors, int index, int nodes);

}  // namespace tandem::cli
